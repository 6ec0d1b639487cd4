// State with awkward shapes whose every value follows from (save, tensor, element), and ways to
// deal it out to ranks.
#pragma once

#include "trireme/base/random.hpp"
#include "trireme/ckpt/checkpoint.hpp"

#include "ckpt/format.hpp"
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace trireme::testing {

using ckpt::DType;
using ckpt::TensorSpec;

// Prime sizes, scalars, nothing at all, exactly one file block, one element more, tensors across
// checksum blocks.
inline std::vector<TensorSpec> sample_specs() {
  return {{"/model/h.0.weight", DType::kFloat32, {257, 1031}},
          {"/model/h.0.bias", DType::kFloat32, {7}},
          {"/model/scalar", DType::kFloat64, {}},
          {"/model/empty", DType::kFloat32, {0, 13}},
          {"/model/one.block", DType::kFloat32, {1024}},
          {"/model/one.more", DType::kFloat32, {1025}},
          {"/model/odd name \"x\" [\xc3\xa9]", DType::kFloat32, {3, 1, 5}},
          {"/optimizer/exp_avg/h.0.weight", DType::kFloat32, {257, 1031}},
          {"/optimizer/step", DType::kInt64, {}},
          {"/rng/state", DType::kUInt8, {5003}},
          {"/optimizer/exp_avg/h.1.weight", DType::kBFloat16, {33, 1031}},
          {"/big", DType::kFloat64, {300007}}};
}

inline std::int64_t elements_of(const TensorSpec& spec) {
  return static_cast<std::int64_t>(*ckpt::bytes_of(spec.dtype, spec.shape) /
                                   ckpt::element_bytes(spec.dtype));
}

// The bytes of elements [begin, begin + count) of tensor `tensor` of save `save`.
inline std::vector<std::byte> values(const TensorSpec& spec, std::size_t tensor, std::int64_t begin,
                                     std::int64_t count, std::uint64_t save) {
  const std::size_t size = ckpt::element_bytes(spec.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto word = philox(mix(save, tensor), static_cast<std::uint64_t>(begin + i));
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * size, word.data(), size);
  }
  return bytes;
}

// Ways in which a tensor is split over ranks.
enum class Deal { kEven, kCrumbs, kFirstRankOnly, kWholeTensors };

// A rank's share of the sample, with the memory that it lies in.
class Share {
 public:
  Share(const std::vector<TensorSpec>& specs, Deal deal, int rank, int size) {
    for (std::size_t tensor = 0; tensor < specs.size(); ++tensor)
      deal_out(specs[tensor], tensor, deal, rank, size);
    // Not in file order: the writer may not rely on it.
    std::reverse(ranges_.begin(), ranges_.end());
  }

  void fill(const std::vector<TensorSpec>& specs, std::uint64_t save) {
    for (Range& range : ranges_)
      range.bytes = values(specs[range.tensor], range.tensor, range.begin, range.count, save);
  }
  void clear(const std::vector<TensorSpec>& specs) {
    for (Range& range : ranges_) {
      const std::size_t size = ckpt::element_bytes(specs[range.tensor].dtype);
      range.bytes.assign(static_cast<std::size_t>(range.count) * size, std::byte{0xee});
    }
  }
  std::vector<ckpt::ConstExtent> written() const {
    std::vector<ckpt::ConstExtent> extents;
    for (const Range& range : ranges_)
      extents.push_back({range.tensor, range.begin, range.count, range.bytes.data()});
    return extents;
  }
  std::vector<ckpt::Extent> wanted() {
    std::vector<ckpt::Extent> extents;
    for (Range& range : ranges_)
      extents.push_back({range.tensor, range.begin, range.count, range.bytes.data()});
    return extents;
  }
  bool holds(const std::vector<TensorSpec>& specs, std::uint64_t save) const {
    return std::all_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
      return range.bytes ==
             values(specs[range.tensor], range.tensor, range.begin, range.count, save);
    });
  }
  void expect_values(const std::vector<TensorSpec>& specs, std::uint64_t save) const {
    for (const Range& range : ranges_) {
      EXPECT_EQ(range.bytes,
                values(specs[range.tensor], range.tensor, range.begin, range.count, save))
          << specs[range.tensor].path << " from " << range.begin;
    }
  }

 private:
  struct Range {
    std::size_t tensor;
    std::int64_t begin;
    std::int64_t count;
    std::vector<std::byte> bytes;
  };

  void add(std::size_t tensor, std::int64_t begin, std::int64_t end) {
    ranges_.push_back({tensor, begin, end - begin, {}});
  }

  void deal_out(const TensorSpec& spec, std::size_t tensor, Deal deal, int rank, int size) {
    const std::int64_t all = elements_of(spec);
    if (deal == Deal::kEven) add(tensor, all * rank / size, all * (rank + 1) / size);
    if (deal == Deal::kFirstRankOnly && rank == 0) add(tensor, 0, all);
    if (deal == Deal::kWholeTensors && static_cast<int>(tensor) % size == rank) add(tensor, 0, all);
    if (deal != Deal::kCrumbs) return;
    // Pieces of 1 to 700 elements, to ranks in turn and now and then to the same one twice.
    std::int64_t begin = 0;
    for (std::uint64_t piece = 0; begin < all; ++piece) {
      const auto words = philox(tensor, piece);
      const std::int64_t end = std::min(all, begin + 1 + static_cast<std::int64_t>(words[0] % 700));
      if (static_cast<int>(words[1] % static_cast<std::uint32_t>(size)) == rank)
        add(tensor, begin, end);
      begin = end;
    }
  }

  std::vector<Range> ranges_;
};

inline ckpt::Snapshot snapshot_of(const std::vector<TensorSpec>& specs, const Share& share,
                                  const std::string& training) {
  return {specs,
          share.written(),
          {{"training", training}, {"config", "model: {type: gpt2}\n"}, {"empty", ""}}};
}

}  // namespace trireme::testing
