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

}  // namespace

struct Reader::Impl {
  Impl(std::filesystem::path folder, const DamageSink& found)
      : path(std::move(folder)),
        state(path / kStateFile),
        manifest(read_manifest(path)),
        map(manifest.tensors, manifest.layout),
        file(open_to_read(state)),
        blocks(file.get(), state, manifest.layout.file_bytes),
        buffer(kCrcBlock) {
    const std::uint64_t size = size_of(file.get(), state);
    if (size != manifest.layout.file_bytes) {
      found({state.string(), "", 0, size, 0,
             fmt::format("{} has {} bytes instead of {}", state.string(), size,
                         manifest.layout.file_bytes)});
    }
    const std::vector<bool> good = check_head(found);
    for (const TextPlace& place : manifest.layout.texts) read_text(place, good);
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i) by_path[manifest.tensors[i].path] = i;
  }

  // Returns which blocks of the head are good.
  std::vector<bool> check_head(const DamageSink& found) {
    std::vector<bool> good(manifest.head_crcs.size(), true);
    for (std::size_t block = 0; block < good.size(); ++block) {
      const std::uint64_t begin = block * kCrcBlock;
      const std::uint64_t count = std::min(kCrcBlock, manifest.layout.head_bytes - begin);
      const std::span<std::byte> bytes(buffer.data(), count);
      std::string problem = failure_of([&] { read_exactly(file.get(), bytes, begin, state); });
      const std::uint32_t crc = kernels::crc32c(bytes);
      if (problem.empty() && crc != manifest.head_crcs[block]) {
        problem = fmt::format(
            "{}: HDF5's own metadata is damaged in block {} (bytes {}..{}): CRC32C is {:08x}, "
            "should be {:08x}",
            state.string(), block, begin, begin + count, crc, manifest.head_crcs[block]);
      }
      good[block] = problem.empty();
      if (!good[block]) found({state.string(), "", block, begin, count, problem});
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
    read_exactly(file.get(), std::as_writable_bytes(std::span(text)), place.offset, state);
    extra[place.name] = std::move(text);
  }

  std::uint64_t block_bytes(std::size_t tensor, std::uint64_t block) const {
    return std::min(kCrcBlock, map.bytes(tensor) - block * kCrcBlock);
  }

  Damage damage(std::size_t tensor, std::uint64_t block, std::string what) const {
    return {state.string(),
            map.spec(tensor).path,
            block,
            map.begin(tensor) + block * kCrcBlock,
            block_bytes(tensor, block),
            std::move(what)};
  }

  // Returns what is wrong with a block whose bytes have this checksum, if anything.
  std::optional<Damage> check_crc(std::size_t tensor, std::uint64_t block,
                                  std::uint32_t crc) const {
    const std::uint32_t expected = manifest.crcs[tensor][block];
    if (crc == expected) return std::nullopt;
    const std::uint64_t begin = block * kCrcBlock;
    return damage(
        tensor, block,
        fmt::format("{}: dataset {} is damaged in block {} (its bytes {}..{}, from {} in "
                    "the file): CRC32C is {:08x}, should be {:08x}",
                    state.string(), map.spec(tensor).path, block, begin,
                    begin + block_bytes(tensor, block), map.begin(tensor) + begin, crc, expected));
  }

  // Reads a block by itself, where reading many at once has failed: throws what is wrong.
  std::span<const std::byte> read_alone(std::size_t tensor, std::uint64_t block) {
    const std::span<std::byte> to = std::span(buffer).first(block_bytes(tensor, block));
    read_exactly(file.get(), to, map.begin(tensor) + block * kCrcBlock, state);
    return to;
  }

  Place place_of(std::size_t tensor, std::uint64_t block) const {
    return {map.begin(tensor) + block * kCrcBlock, block_bytes(tensor, block)};
  }

  // The padding behind a tensor carries nothing, but a flipped bit there tells of a failing disk.
  std::optional<Damage> examine_padding(std::size_t tensor) {
    const std::uint64_t end = map.end(tensor);
    const std::span<std::byte> padding(buffer.data(),
                                       std::min(align_up(end), manifest.layout.file_bytes) - end);
    std::string problem = failure_of([&] { read_exactly(file.get(), padding, end, state); });
    if (problem.empty() && std::any_of(padding.begin(), padding.end(),
                                       [](std::byte byte) { return byte != std::byte{0}; })) {
      problem = fmt::format("{}: the padding behind dataset {} is damaged", state.string(),
                            map.spec(tensor).path);
    }
    if (problem.empty()) return std::nullopt;
    return Damage{
        state.string(), map.spec(tensor).path, blocks_of(map.bytes(tensor)), end, padding.size(),
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

  std::filesystem::path path;
  std::filesystem::path state;
  Manifest manifest;
  FileMap map;
  FileDescriptor file;
  BlockReader blocks;
  std::vector<std::byte> buffer;  // of one block
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
int Reader::world_size() const { return impl_->manifest.world_size; }
const std::map<std::string, std::string>& Reader::versions() const {
  return impl_->manifest.versions;
}
const std::filesystem::path& Reader::path() const { return impl_->path; }
const std::vector<TensorSpec>& Reader::tensors() const { return impl_->manifest.tensors; }
const std::map<std::string, std::string>& Reader::extra() const { return impl_->extra; }

std::vector<std::string> Reader::text_names() const {
  std::vector<std::string> names;
  for (const TextPlace& place : impl_->manifest.layout.texts) names.push_back(place.name);
  return names;
}

std::optional<std::size_t> Reader::find(std::string_view tensor_path) const {
  const auto found = impl_->by_path.find(tensor_path);
  if (found == impl_->by_path.end()) return std::nullopt;
  return found->second;
}

void Reader::read(std::span<const Extent> extents, PageCache cache) const {
  check_extents(tensors(), extents);
  const std::vector<Want> wants = sorted_wants(tensors(), extents);
  const std::vector<WantedBlock> blocks = blocks_touched(wants);
  std::vector<Place> places;
  for (const WantedBlock& one : blocks) places.push_back(impl_->place_of(one.tensor, one.block));
  impl_->blocks.each(places, cache, [&](std::size_t i, std::span<const std::byte> bytes) {
    const WantedBlock& one = blocks[i];
    if (bytes.empty()) bytes = impl_->read_alone(one.tensor, one.block);
    impl_->deliver(one, bytes, std::span(wants).subspan(one.first, one.last - one.first));
  });
}

void Reader::verify() const { verify(throw_damage); }

void Reader::verify(const DamageSink& found, const Progress& progress) const {
  std::uint64_t done = 0;
  std::uint64_t all = 0;
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) all += impl_->map.bytes(tensor);
  const auto tell = [&](const std::optional<Damage>& damage) {
    if (damage) found(*damage);
  };
  std::vector<std::pair<std::size_t, std::uint64_t>> blocks;
  std::vector<Place> places;
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) {
    for (std::uint64_t block = 0; block < blocks_of(impl_->map.bytes(tensor)); ++block) {
      blocks.emplace_back(tensor, block);
      places.push_back(impl_->place_of(tensor, block));
    }
  }
  impl_->blocks.each(
      places, PageCache::kPast, [&](std::size_t i, std::span<const std::byte> bytes) {
        const auto [tensor, block] = blocks[i];
        const std::string problem = failure_of([&] {
          if (bytes.empty()) bytes = impl_->read_alone(tensor, block);
        });
        tell(problem.empty() ? impl_->check_crc(tensor, block, kernels::crc32c(bytes))
                             : impl_->damage(tensor, block, problem));
        if (block + 1 == blocks_of(impl_->map.bytes(tensor))) tell(impl_->examine_padding(tensor));
        done += impl_->block_bytes(tensor, block);
        if (progress)
          progress(Bytes(static_cast<std::int64_t>(done)), Bytes(static_cast<std::int64_t>(all)));
      });
}

}  // namespace trireme::ckpt
