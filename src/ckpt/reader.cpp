#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/kernels/checksum.hpp"

#include "ckpt/format.hpp"
#include "ckpt/io.hpp"
#include "ckpt/manifest.hpp"
#include "ckpt/plan.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace trireme::ckpt {

namespace {

[[noreturn]] void throw_damage(const Damage& damage) {
  throw Error(ErrorKind::kCorrupt, damage.what,
              "the bytes on disk are not those that were written; use an earlier checkpoint, or "
              "another copy of this one");
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

  // Fills `to`, which is as long as the block; returns what is wrong with it, if anything.
  std::optional<Damage> check_block(std::size_t tensor, std::uint64_t block,
                                    std::span<std::byte> to) const {
    const std::uint64_t begin = block * kCrcBlock;
    read_exactly(file.get(), to, map.begin(tensor) + begin, state);
    const std::uint32_t crc = kernels::crc32c(to);
    const std::uint32_t expected = manifest.crcs[tensor][block];
    if (crc == expected) return std::nullopt;
    return damage(tensor, block,
                  fmt::format("{}: dataset {} is damaged in block {} (its bytes {}..{}, from {} in "
                              "the file): CRC32C is {:08x}, should be {:08x}",
                              state.string(), map.spec(tensor).path, block, begin,
                              begin + to.size(), map.begin(tensor) + begin, crc, expected));
  }

  void read_block(std::size_t tensor, std::uint64_t block, std::span<std::byte> to) const {
    if (const auto found = check_block(tensor, block, to)) throw_damage(*found);
  }

  // As check_block, with an unreadable block as a finding too.
  std::optional<Damage> examine_block(std::size_t tensor, std::uint64_t block) {
    std::optional<Damage> found;
    const std::string problem = failure_of([&] {
      found = check_block(tensor, block, std::span(buffer).first(block_bytes(tensor, block)));
    });
    return problem.empty() ? found : damage(tensor, block, problem);
  }

  // Reads bytes [begin, end) of a tensor. `held` is the block that the buffer holds: neighbours
  // often share one.
  using Block = std::pair<std::size_t, std::uint64_t>;
  void read_range(std::size_t tensor, std::uint64_t begin, std::uint64_t end, std::byte* to,
                  std::optional<Block>& held) {
    while (begin < end) {
      const std::uint64_t block = begin / kCrcBlock;
      const std::uint64_t within = begin % kCrcBlock;
      const std::uint64_t size = block_bytes(tensor, block);
      const std::uint64_t count = std::min(end - begin, size - within);
      if (count == size) {
        read_block(tensor, block, {to, size});
      } else {
        if (held != Block(tensor, block)) {
          held.reset();
          read_block(tensor, block, std::span(buffer).first(size));
          held = Block(tensor, block);
        }
        std::memcpy(to, buffer.data() + within, count);
      }
      begin += count;
      to += count;
    }
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

  std::filesystem::path path;
  std::filesystem::path state;
  Manifest manifest;
  FileMap map;
  FileDescriptor file;
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

void Reader::read(std::span<const Extent> extents) const {
  std::vector<ConstExtent> wanted;
  for (const Extent& extent : extents)
    wanted.push_back({extent.tensor, extent.begin, extent.count, extent.data});
  check_extents(tensors(), wanted);
  std::vector<std::size_t> order(extents.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(extents[a].tensor, extents[a].begin) <
           std::pair(extents[b].tensor, extents[b].begin);
  });
  std::optional<Impl::Block> held;
  for (const std::size_t i : order) {
    const Extent& extent = extents[i];
    const std::uint64_t size = element_bytes(tensors()[extent.tensor].dtype);
    const std::uint64_t begin = static_cast<std::uint64_t>(extent.begin) * size;
    impl_->read_range(extent.tensor, begin, begin + static_cast<std::uint64_t>(extent.count) * size,
                      static_cast<std::byte*>(extent.data), held);
  }
}

void Reader::verify() const { verify(throw_damage); }

void Reader::verify(const DamageSink& found, const Progress& progress) const {
  std::uint64_t done = 0;
  std::uint64_t all = 0;
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) all += impl_->map.bytes(tensor);
  const auto tell = [&](const std::optional<Damage>& damage) {
    if (damage) found(*damage);
  };
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) {
    if (impl_->map.bytes(tensor) == 0) continue;
    for (std::uint64_t block = 0; block < blocks_of(impl_->map.bytes(tensor)); ++block) {
      tell(impl_->examine_block(tensor, block));
      done += impl_->block_bytes(tensor, block);
      if (progress)
        progress(Bytes(static_cast<std::int64_t>(done)), Bytes(static_cast<std::int64_t>(all)));
    }
    tell(impl_->examine_padding(tensor));
  }
}

}  // namespace trireme::ckpt
