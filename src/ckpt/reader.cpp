#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/kernels/checksum.hpp"

#include "ckpt/block_reader.hpp"
#include "ckpt/format.hpp"
#include "ckpt/io.hpp"
#include "ckpt/manifest.hpp"
#include "ckpt/plan.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace trireme::ckpt {

namespace {

[[noreturn]] void throw_damage(const Damage& damage) {
  throw Error(ErrorKind::kCorrupt, damage.what,
              "the bytes on disk are not those that were written; use an earlier checkpoint, or "
              "another copy of this one");
}

// Bytes [begin, end) of a tensor, and where they go.
struct Want {
  std::size_t tensor;
  std::uint64_t begin;
  std::uint64_t end;
  std::byte* to;  // null: the extent takes them
  const Extent* extent;
};

// A block and the wants that touch it: [first, last) of the sorted list.
struct WantedBlock {
  std::size_t tensor;
  std::uint64_t block;
  std::size_t first;
  std::size_t last;
};

std::vector<Want> sorted_wants(const std::vector<TensorSpec>& tensors,
                               std::span<const Extent> extents) {
  std::vector<Want> wants;
  for (const Extent& extent : extents) {
    if (extent.count == 0) continue;
    const std::uint64_t size = element_bytes(tensors[extent.tensor].dtype);
    const std::uint64_t begin = static_cast<std::uint64_t>(extent.begin) * size;
    wants.push_back({extent.tensor, begin, begin + static_cast<std::uint64_t>(extent.count) * size,
                     static_cast<std::byte*>(extent.data), &extent});
  }
  std::sort(wants.begin(), wants.end(), [](const Want& a, const Want& b) {
    return std::tie(a.tensor, a.begin) < std::tie(b.tensor, b.begin);
  });
  return wants;
}

// Returns every block that is touched, once, in order. Wants may overlap.
std::vector<WantedBlock> blocks_touched(std::span<const Want> wants) {
  std::vector<WantedBlock> blocks;
  for (std::size_t i = 0; i < wants.size(); ++i) {
    const bool same = !blocks.empty() && blocks.back().tensor == wants[i].tensor;
    std::uint64_t block = wants[i].begin / kCrcBlock;
    // Those that earlier wants brought up; the earliest that this one touches is not far back.
    for (std::size_t back = blocks.size();
         same && back > 0 && blocks[back - 1].tensor == wants[i].tensor &&
         blocks[back - 1].block >= block;
         --back) {
      blocks[back - 1].last = i + 1;
    }
    if (same) block = std::max(block, blocks.back().block + 1);
    for (; block * kCrcBlock < wants[i].end; ++block)
      blocks.push_back({wants[i].tensor, block, i, i + 1});
  }
  return blocks;
}

// Unreadable bytes are damage as well.
template <class Read>
std::string failure_of(Read read) {
  try {
    read();
    return {};
  } catch (const Error& error) {
    return error.cause.empty() ? error.message : error.message + ": " + error.cause;
  }
}

// One HDF5 file of a checkpoint; tensors are its datasets here.
class StateReader {
 public:
  StateReader(const std::filesystem::path& folder, const StateFile& about, const DamageSink& found)
      : state_(folder / about.name),
        about_(about),
        map_(about.tensors, about.layout),
        file_(open_to_read(state_)),
        blocks_(file_.get(), state_, about.layout.file_bytes),
        buffer_(kCrcBlock) {
    const std::uint64_t size = size_of(file_.get(), state_);
    if (size != about_.layout.file_bytes) {
      found({state_.string(), "", 0, size, 0,
             fmt::format("{} has {} bytes instead of {}", state_.string(), size,
                         about_.layout.file_bytes)});
    }
    const std::vector<bool> good = check_head(found);
    for (const TextPlace& place : about_.layout.texts) read_text(place, good);
  }

  const std::map<std::string, std::string>& texts() const { return extra_; }

  void read(std::span<const Extent> extents, PageCache cache) {
    const std::vector<Want> wants = sorted_wants(about_.tensors, extents);
    const std::vector<WantedBlock> touched = blocks_touched(wants);
    std::vector<Place> places;
    for (const WantedBlock& one : touched) places.push_back(place_of(one.tensor, one.block));
    blocks_.each(places, cache, [&](std::size_t i, std::span<const std::byte> bytes) {
      const WantedBlock& one = touched[i];
      if (bytes.empty()) bytes = read_alone(one.tensor, one.block);
      deliver(one, bytes, std::span(wants).subspan(one.first, one.last - one.first));
    });
  }

  // Tells `done` how many bytes were looked at.
  void verify(const DamageSink& found, const std::function<void(std::uint64_t)>& done) {
    const auto tell = [&](const std::optional<Damage>& damage) {
      if (damage) found(*damage);
    };
    std::vector<std::pair<std::size_t, std::uint64_t>> all;
    std::vector<Place> places;
    for (std::size_t tensor = 0; tensor < about_.tensors.size(); ++tensor) {
      for (std::uint64_t block = 0; block < blocks_of(map_.bytes(tensor)); ++block) {
        all.emplace_back(tensor, block);
        places.push_back(place_of(tensor, block));
      }
    }
    blocks_.each(places, PageCache::kPast, [&](std::size_t i, std::span<const std::byte> bytes) {
      const auto [tensor, block] = all[i];
      const std::string problem = failure_of([&] {
        if (bytes.empty()) bytes = read_alone(tensor, block);
      });
      tell(problem.empty() ? check_crc(tensor, block, kernels::crc32c(bytes))
                           : damage(tensor, block, problem));
      if (block + 1 == blocks_of(map_.bytes(tensor))) tell(examine_padding(tensor));
      done(block_bytes(tensor, block));
    });
  }

 private:
  // Returns which blocks of the head are good.
  std::vector<bool> check_head(const DamageSink& found) {
    std::vector<bool> good(about_.head_crcs.size(), true);
    for (std::size_t block = 0; block < good.size(); ++block) {
      const std::uint64_t begin = block * kCrcBlock;
      const std::uint64_t count = std::min(kCrcBlock, about_.layout.head_bytes - begin);
      const std::span<std::byte> bytes(buffer_.data(), count);
      std::string problem = failure_of([&] { read_exactly(file_.get(), bytes, begin, state_); });
      const std::uint32_t crc = kernels::crc32c(bytes);
      if (problem.empty() && crc != about_.head_crcs[block]) {
        problem = fmt::format(
            "{}: HDF5's own metadata is damaged in block {} (bytes {}..{}): CRC32C is {:08x}, "
            "should be {:08x}",
            state_.string(), block, begin, begin + count, crc, about_.head_crcs[block]);
      }
      good[block] = problem.empty();
      if (!good[block]) found({state_.string(), "", block, begin, count, problem});
    }
    return good;
  }

  // Reads a text, unless it lies in a damaged block.
  void read_text(const TextPlace& place, const std::vector<bool>& good) {
    for (std::uint64_t at = place.offset / kCrcBlock;
         place.bytes > 0 && at <= (place.offset + place.bytes - 1) / kCrcBlock; ++at) {
      if (!good[at]) return;
    }
    std::string text(place.bytes, '\0');
    read_exactly(file_.get(), std::as_writable_bytes(std::span(text)), place.offset, state_);
    extra_[place.name] = std::move(text);
  }

  std::uint64_t block_bytes(std::size_t tensor, std::uint64_t block) const {
    return std::min(kCrcBlock, map_.bytes(tensor) - block * kCrcBlock);
  }

  Damage damage(std::size_t tensor, std::uint64_t block, std::string what) const {
    return {state_.string(),
            map_.spec(tensor).path,
            block,
            map_.begin(tensor) + block * kCrcBlock,
            block_bytes(tensor, block),
            std::move(what)};
  }

  // Returns what is wrong with a block whose bytes have this checksum, if anything.
  std::optional<Damage> check_crc(std::size_t tensor, std::uint64_t block,
                                  std::uint32_t crc) const {
    const std::uint32_t expected = about_.crcs[tensor][block];
    if (crc == expected) return std::nullopt;
    const std::uint64_t begin = block * kCrcBlock;
    return damage(
        tensor, block,
        fmt::format("{}: dataset {} is damaged in block {} (its bytes {}..{}, from {} in "
                    "the file): CRC32C is {:08x}, should be {:08x}",
                    state_.string(), map_.spec(tensor).path, block, begin,
                    begin + block_bytes(tensor, block), map_.begin(tensor) + begin, crc, expected));
  }

  // Reads a block by itself, where reading many at once has failed: throws what is wrong.
  std::span<const std::byte> read_alone(std::size_t tensor, std::uint64_t block) {
    const std::span<std::byte> to = std::span(buffer_).first(block_bytes(tensor, block));
    read_exactly(file_.get(), to, map_.begin(tensor) + block * kCrcBlock, state_);
    return to;
  }

  Place place_of(std::size_t tensor, std::uint64_t block) const {
    return {map_.begin(tensor) + block * kCrcBlock, block_bytes(tensor, block)};
  }

  // The padding behind a tensor carries nothing, but a flipped bit there tells of a failing disk.
  std::optional<Damage> examine_padding(std::size_t tensor) {
    const std::uint64_t end = map_.end(tensor);
    const std::span<std::byte> padding(buffer_.data(),
                                       std::min(align_up(end), about_.layout.file_bytes) - end);
    std::string problem = failure_of([&] { read_exactly(file_.get(), padding, end, state_); });
    if (problem.empty() && std::any_of(padding.begin(), padding.end(),
                                       [](std::byte byte) { return byte != std::byte{0}; })) {
      problem = fmt::format("{}: the padding behind dataset {} is damaged", state_.string(),
                            map_.spec(tensor).path);
    }
    if (problem.empty()) return std::nullopt;
    return Damage{
        state_.string(), map_.spec(tensor).path, blocks_of(map_.bytes(tensor)), end, padding.size(),
        problem};
  }

  // Checks a block and copies its parts to whoever wants them; throws Corrupt. The common case, a
  // want that covers it, is one pass over the bytes.
  void deliver(const WantedBlock& one, std::span<const std::byte> bytes,
               std::span<const Want> wants) const {
    const std::uint64_t begin = one.block * kCrcBlock;
    const std::uint64_t end = begin + bytes.size();
    const bool whole = wants.size() == 1 && wants[0].to != nullptr && wants[0].begin <= begin &&
                       wants[0].end >= end;
    const std::uint32_t crc =
        whole ? kernels::copy_crc32c(bytes, {wants[0].to + (begin - wants[0].begin), bytes.size()})
              : kernels::crc32c(bytes);
    if (const auto found = check_crc(one.tensor, one.block, crc)) throw_damage(*found);
    if (whole) return;
    for (const Want& want : wants) {
      const std::uint64_t from = std::max(begin, want.begin);
      const std::uint64_t to = std::min(end, want.end);
      if (from >= to) continue;
      const auto part = bytes.subspan(from - begin, to - from);
      if (want.to != nullptr) {
        std::memcpy(want.to + (from - want.begin), part.data(), part.size());
      } else {
        want.extent->move(from - want.begin, part);
      }
    }
  }

  std::filesystem::path state_;
  const StateFile& about_;
  FileMap map_;
  FileDescriptor file_;
  BlockReader blocks_;
  std::vector<std::byte> buffer_;  // of one block
  std::map<std::string, std::string> extra_;
};

// Cuts an extent of a tensor at the borders of its parts, for the files that have them.
class Router {
 public:
  explicit Router(const Manifest& manifest) : manifest_(manifest) {}

  std::vector<std::vector<Extent>> route(std::span<const Extent> extents) const {
    std::vector<std::vector<Extent>> by_file(manifest_.files.size());
    for (const Extent& extent : extents) {
      auto part = std::partition_point(manifest_.parts.begin(), manifest_.parts.end(),
                                       [&](const Part& one) {
                                         return std::pair(one.tensor, one.begin + one.count) <=
                                                std::pair(extent.tensor, extent.begin);
                                       });
      const std::int64_t end = extent.begin + extent.count;
      for (; part != manifest_.parts.end() && part->tensor == extent.tensor && part->begin < end;
           ++part) {
        by_file[part->file].push_back(piece(extent, *part));
      }
    }
    return by_file;
  }

 private:
  // The piece lives no longer than the extent.
  Extent piece(const Extent& extent, const Part& part) const {
    const std::int64_t begin = std::max(extent.begin, part.begin);
    const std::int64_t end = std::min(extent.begin + extent.count, part.begin + part.count);
    const std::uint64_t skipped = static_cast<std::uint64_t>(begin - extent.begin) *
                                  element_bytes(manifest_.tensors[extent.tensor].dtype);
    Extent result{part.stored, begin - part.begin, end - begin};
    if (extent.data != nullptr) {
      result.data = static_cast<std::byte*>(extent.data) + skipped;
    } else {
      result.move = [&extent, skipped](std::uint64_t offset, std::span<const std::byte> bytes) {
        extent.move(skipped + offset, bytes);
      };
    }
    return result;
  }

  const Manifest& manifest_;
};

}  // namespace

struct Reader::Impl {
  Impl(std::filesystem::path folder, const DamageSink& found)
      : path(std::move(folder)), manifest(read_manifest(path)) {
    for (const StateFile& file : manifest.files) {
      files.push_back(open(file, found));
      if (files.back() != nullptr)
        extra.insert(files.back()->texts().begin(), files.back()->texts().end());
    }
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i) by_path[manifest.tensors[i].path] = i;
  }

  // Returns nothing for one of several files that does not open: what is in the others is not lost.
  std::unique_ptr<StateReader> open(const StateFile& file, const DamageSink& found) const {
    std::unique_ptr<StateReader> reader;
    const auto try_open = [&] { reader = std::make_unique<StateReader>(path, file, found); };
    if (!manifest.by_node()) {
      try_open();
    } else if (std::string problem = failure_of(try_open); !problem.empty()) {
      found({(path / file.name).string(), "", 0, 0, 0, std::move(problem)});
    }
    return reader;
  }

  StateReader& file(std::size_t index) const {
    if (files[index] != nullptr) return *files[index];
    const std::string name = (path / manifest.files[index].name).string();
    throw_damage({name, "", 0, 0, 0, fmt::format("{} cannot be read", name)});
  }

  std::filesystem::path path;
  Manifest manifest;
  std::vector<std::unique_ptr<StateReader>> files;  // they refer to the manifest's
  std::map<std::string, std::string> extra;
  std::unordered_map<std::string_view, std::size_t> by_path;
};

Reader::Reader(std::filesystem::path checkpoint)
    : impl_(new Impl(std::move(checkpoint), throw_damage)) {}
Reader::Reader(std::filesystem::path checkpoint, const DamageSink& found)
    : impl_(new Impl(std::move(checkpoint), found)) {}
Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;

Step Reader::step() const { return impl_->manifest.step; }
int Reader::format() const { return impl_->manifest.version; }
int Reader::world_size() const { return impl_->manifest.world_size; }
const std::map<std::string, std::string>& Reader::versions() const {
  return impl_->manifest.versions;
}
const std::filesystem::path& Reader::path() const { return impl_->path; }
const std::vector<TensorSpec>& Reader::tensors() const { return impl_->manifest.tensors; }
const std::map<std::string, std::string>& Reader::extra() const { return impl_->extra; }

std::vector<std::string> Reader::text_names() const {
  std::vector<std::string> names;
  for (const StateFile& file : impl_->manifest.files) {
    for (const TextPlace& place : file.layout.texts) names.push_back(place.name);
  }
  return names;
}

std::optional<std::size_t> Reader::find(std::string_view tensor_path) const {
  const auto found = impl_->by_path.find(tensor_path);
  if (found == impl_->by_path.end()) return std::nullopt;
  return found->second;
}

void Reader::read(std::span<const Extent> extents, PageCache cache) const {
  check_extents(tensors(), extents);
  const auto by_file = Router(impl_->manifest).route(extents);
  for (std::size_t i = 0; i < by_file.size(); ++i) {
    if (!by_file[i].empty()) impl_->file(i).read(by_file[i], cache);
  }
}

void Reader::verify() const { verify(throw_damage); }

void Reader::verify(const DamageSink& found, const Progress& progress) const {
  std::uint64_t done = 0;
  std::uint64_t all = 0;
  for (const TensorSpec& spec : tensors()) all += *bytes_of(spec.dtype, spec.shape);
  for (const auto& file : impl_->files) {
    if (file == nullptr) continue;  // as was said when it was opened
    file->verify(found, [&](std::uint64_t bytes) {
      done += bytes;
      if (progress)
        progress(Bytes(static_cast<std::int64_t>(done)), Bytes(static_cast<std::int64_t>(all)));
    });
  }
}

}  // namespace trireme::ckpt
