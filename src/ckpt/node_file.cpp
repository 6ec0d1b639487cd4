#include "ckpt/node_file.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/format.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

namespace trireme::ckpt {

namespace {

struct Range {
  std::uint64_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

void sort(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.tensor, a.begin) < std::tie(b.tensor, b.begin);
  });
}

// Of all ranks of the node.
std::vector<Range> ranges_of(comm::Communicator& node, std::span<const ConstExtent> extents) {
  std::vector<Range> mine;
  for (const ConstExtent& extent : extents) {
    if (extent.count > 0)
      mine.push_back({extent.tensor, extent.begin, extent.begin + extent.count});
  }
  std::vector<Range> all;
  for (const comm::ByteVector& bytes :
       node.all_gather(std::as_bytes(std::span(mine)), "checkpoint parts of the node")) {
    ensure(bytes.size() % sizeof(Range) == 0, "a message of ranges is complete");
    const std::size_t before = all.size();
    all.resize(before + bytes.size() / sizeof(Range));
    if (!bytes.empty()) std::memcpy(all.data() + before, bytes.data(), bytes.size());
  }
  return all;
}

std::int64_t elements_of(const TensorSpec& spec) {
  return static_cast<std::int64_t>(*bytes_of(spec.dtype, spec.shape) / element_bytes(spec.dtype));
}

TensorSpec dataset_for(const TensorSpec& spec, const Part& part) {
  if (part.count == elements_of(spec)) return spec;
  return {fmt::format("{}/{}-{}", spec.path, part.begin, part.begin + part.count - 1),
          spec.dtype,
          {part.count}};
}

std::vector<Part> joined(const std::vector<TensorSpec>& tensors, std::span<const Range> ranges) {
  std::vector<Part> parts;
  for (const Range& range : ranges) {
    const bool same = !parts.empty() && parts.back().tensor == range.tensor;
    const std::int64_t end = same ? parts.back().begin + parts.back().count : 0;
    ensure(!same || end <= range.begin,
           fmt::format("each element is given once, but elements {}..{} of {} come twice",
                       range.begin, std::min(end, range.end), tensors[range.tensor].path));
    if (same && end == range.begin) {
      parts.back().count += range.end - range.begin;
    } else {
      parts.push_back({range.tensor, range.begin, range.end - range.begin, 0, parts.size()});
    }
  }
  return parts;
}

}  // namespace

NodeContent node_content(comm::Communicator& node, const std::vector<TensorSpec>& tensors,
                         std::span<const ConstExtent> extents, bool is_first) {
  NodeContent content;
  std::vector<Range> ranges = ranges_of(node, extents);
  for (std::size_t i = 0; i < tensors.size() && is_first; ++i) {
    if (elements_of(tensors[i]) == 0) ranges.push_back({i, 0, 0});
  }
  sort(ranges);
  content.parts = joined(tensors, ranges);
  for (const Part& part : content.parts)
    content.tensors.push_back(dataset_for(tensors[part.tensor], part));
  for (const ConstExtent& extent : extents) {
    if (extent.count == 0) continue;
    // The last part that begins where the extent does or before.
    auto part = std::upper_bound(content.parts.begin(), content.parts.end(), extent,
                                 [](const ConstExtent& wanted, const Part& one) {
                                   return std::tie(wanted.tensor, wanted.begin) <
                                          std::tie(one.tensor, one.begin);
                                 });
    --part;
    ConstExtent stored = extent;
    stored.tensor = part->stored;
    stored.begin -= part->begin;
    content.extents.push_back(std::move(stored));
  }
  return content;
}

std::string node_file_name(int node) { return fmt::format("state-{:04}.h5", node); }

}  // namespace trireme::ckpt
