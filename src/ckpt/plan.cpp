#include "ckpt/plan.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace trireme::ckpt {

namespace {

constexpr std::uint64_t kOwnerStride = 1024 * 1024;

struct PartHeader {
  std::uint64_t offset;
  std::uint32_t bytes;
  std::uint32_t tensor;
};

bool by_offset(const Segment& a, const Segment& b) { return a.offset < b.offset; }

// "elements 3..7 of /model/w" for a range of file offsets.
std::string elements(const FileMap& map, std::size_t tensor, std::uint64_t from, std::uint64_t to) {
  const std::uint64_t size = element_bytes(map.spec(tensor).dtype);
  const std::uint64_t begin = map.begin(tensor);
  return fmt::format("elements {}..{} of {}", (from - begin) / size, (to - begin + size - 1) / size,
                     map.spec(tensor).path);
}

void check_order(const FileMap& map, std::span<const Segment> sorted) {
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const Segment& before = sorted[i - 1];
    if (before.end() > sorted[i].offset) {
      ensure(false, fmt::format("each element is given once, but {} come twice",
                                elements(map, sorted[i].tensor, sorted[i].offset,
                                         std::min(before.end(), sorted[i].end()))));
    }
  }
}

Segment cut(const Segment& segment, std::uint64_t from, std::uint64_t to) {
  const std::uint64_t begin = std::max(from, segment.offset);
  Segment piece = segment;
  piece.offset = begin;
  piece.bytes = std::min(to, segment.end()) - begin;
  if (piece.data != nullptr) piece.data += begin - segment.offset;
  piece.at += begin - segment.offset;
  return piece;
}

// Segments of one tensor without gaps between them.
class Run {
 public:
  explicit Run(std::span<const Segment> segments) : segments_(segments) {}

  std::uint64_t begin() const { return segments_.front().offset; }
  std::uint64_t end() const { return segments_.back().end(); }

  template <class Sink>
  void each_within(std::uint64_t from, std::uint64_t to, Sink sink) const {
    auto it = std::partition_point(segments_.begin(), segments_.end(),
                                   [&](const Segment& segment) { return segment.end() <= from; });
    for (; it != segments_.end() && it->offset < to; ++it) {
      if (const Segment piece = cut(*it, from, to); piece.bytes > 0) sink(piece);
    }
  }

 private:
  std::span<const Segment> segments_;
};

// The end of a tensor completes its last block: what follows in that block is padding.
std::uint64_t last_border(const FileMap& map, const Run& run, std::size_t tensor) {
  return run.end() == map.end(tensor) ? run.end() : align_down(run.end());
}

void split_run(const FileMap& map, const Run& run, std::size_t tensor, Split& split) {
  const std::uint64_t from = align_up(run.begin());
  const std::uint64_t to = last_border(map, run, tensor);
  const bool has_whole_blocks = from < to;
  auto ship = [&](const Segment& piece) {
    // A part reaches over a border when a run without whole blocks lies across it.
    for (std::uint64_t at = piece.offset; at < piece.end();) {
      const std::uint64_t stop = std::min(piece.end(), align_down(at) + kFileBlock);
      const std::size_t owner = at / kOwnerStride % split.parts_by_rank.size();
      split.parts_by_rank[owner].push_back(cut(piece, at, stop));
      at = stop;
    }
  };
  if (!has_whole_blocks) return run.each_within(run.begin(), run.end(), ship);
  run.each_within(run.begin(), from, ship);
  run.each_within(from, to, [&](const Segment& piece) { split.own.push_back(piece); });
  run.each_within(to, run.end(), ship);
}

// Received parts must fill the whole of what their block holds.
void check_complete(const FileMap& map, std::span<const Segment> parts) {
  for (std::size_t i = 0; i < parts.size();) {
    const std::size_t tensor = parts[i].tensor;
    const std::uint64_t block = align_down(parts[i].offset);
    const std::uint64_t stop = std::min(map.end(tensor), block + kFileBlock);
    std::uint64_t at = block;
    for (; i < parts.size() && parts[i].offset < stop && parts[i].offset == at; ++i)
      at = parts[i].end();
    if (at != stop) {
      const std::uint64_t next = i < parts.size() ? std::min(parts[i].offset, stop) : stop;
      ensure(false, fmt::format("each element is given once, but no rank gives {}",
                                elements(map, tensor, at, next)));
    }
  }
}

}  // namespace

FileMap::FileMap(const std::vector<TensorSpec>& tensors, const Layout& layout)
    : tensors_(&tensors), begins_(layout.offsets) {
  for (const TensorSpec& spec : tensors) bytes_.push_back(*bytes_of(spec.dtype, spec.shape));
}

namespace {

template <class AnyExtent>
void check_each(const std::vector<TensorSpec>& tensors, std::span<const AnyExtent> extents) {
  for (const AnyExtent& extent : extents) {
    ensure(extent.tensor < tensors.size(), "an extent names a tensor of the list");
    const TensorSpec& spec = tensors[extent.tensor];
    const auto elements =
        static_cast<std::int64_t>(*bytes_of(spec.dtype, spec.shape) / element_bytes(spec.dtype));
    ensure(extent.begin >= 0 && extent.count >= 0 && extent.begin <= elements &&
               extent.count <= elements - extent.begin,
           fmt::format("{} elements from {} lie within {} of {} elements", extent.count,
                       extent.begin, spec.path, elements));
    ensure(extent.data != nullptr || extent.move || extent.count == 0,
           "an extent with elements has memory, or something that makes them");
  }
}

}  // namespace

void check_extents(const std::vector<TensorSpec>& tensors, std::span<const ConstExtent> extents) {
  check_each(tensors, extents);
}

void check_extents(const std::vector<TensorSpec>& tensors, std::span<const Extent> extents) {
  check_each(tensors, extents);
}

std::vector<Segment> segments_of(const FileMap& map, std::span<const ConstExtent> extents) {
  std::vector<Segment> segments;
  segments.reserve(extents.size());
  for (const ConstExtent& extent : extents) {
    if (extent.count == 0) continue;
    const std::uint64_t size = element_bytes(map.spec(extent.tensor).dtype);
    segments.push_back({map.begin(extent.tensor) + static_cast<std::uint64_t>(extent.begin) * size,
                        static_cast<std::uint64_t>(extent.count) * size,
                        static_cast<const std::byte*>(extent.data), extent.tensor, &extent, 0});
  }
  std::sort(segments.begin(), segments.end(), by_offset);
  check_order(map, segments);
  return segments;
}

Split split_by_owner(const FileMap& map, std::span<const Segment> segments, int num_ranks) {
  Split split;
  split.parts_by_rank.resize(static_cast<std::size_t>(num_ranks));
  for (std::size_t first = 0; first < segments.size();) {
    std::size_t last = first + 1;
    while (last < segments.size() && segments[last].tensor == segments[first].tensor &&
           segments[last].offset == segments[last - 1].end()) {
      ++last;
    }
    split_run(map, Run(segments.subspan(first, last - first)), segments[first].tensor, split);
    first = last;
  }
  return split;
}

comm::ByteVector pack_parts(std::span<const Segment> parts) {
  std::size_t size = 0;
  for (const Segment& part : parts) size += sizeof(PartHeader) + part.bytes;
  comm::ByteVector message(size);
  std::byte* at = message.data();
  for (const Segment& part : parts) {
    const PartHeader header{part.offset, static_cast<std::uint32_t>(part.bytes),
                            static_cast<std::uint32_t>(part.tensor)};
    std::memcpy(at, &header, sizeof(header));
    if (part.data != nullptr) {
      std::memcpy(at + sizeof(header), part.data, part.bytes);
    } else {
      part.make(0, {at + sizeof(header), part.bytes});
    }
    at += sizeof(header) + part.bytes;
  }
  return message;
}

void unpack_parts(const FileMap& map, std::span<const std::byte> message,
                  std::vector<Segment>& parts) {
  while (!message.empty()) {
    PartHeader header{};
    ensure(message.size() >= sizeof(header), "a message of block parts is complete");
    std::memcpy(&header, message.data(), sizeof(header));
    message = message.subspan(sizeof(header));
    ensure(message.size() >= header.bytes && header.tensor < map.size(),
           "a message of block parts is complete");
    parts.push_back({header.offset, header.bytes, message.data(), header.tensor, nullptr, 0});
    message = message.subspan(header.bytes);
  }
}

std::vector<Segment> merge_parts(const FileMap& map, std::vector<Segment> own,
                                 std::vector<Segment> parts) {
  std::sort(parts.begin(), parts.end(), by_offset);
  check_order(map, parts);
  check_complete(map, parts);
  std::vector<Segment> merged(own.size() + parts.size());
  std::merge(own.begin(), own.end(), parts.begin(), parts.end(), merged.begin(), by_offset);
  check_order(map, merged);
  return merged;
}

}  // namespace trireme::ckpt
