#include "trireme/parallel/tree_sum.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/accumulate.hpp"
#include "trireme/parallel/micro_batches.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace trireme::parallel {

namespace {

// Small enough that the partial sums of a deep tree stay in the second-level cache.
constexpr std::int64_t kChunk = 4096;
constexpr std::size_t kMaxDepth = 24;
using Scratch = std::vector<std::array<float, kChunk>>;

std::span<const float> chunk(const float* data, std::int64_t at, std::int64_t count) {
  return {data + at, static_cast<std::size_t>(count)};
}

// Returns where the sum of the inputs' chunk is: an input itself, or scratch. Each depth has a left
// and a right buffer.
std::span<const float> sum_chunk(std::span<const float* const> in, std::int64_t at,
                                 std::int64_t count, std::size_t place, Scratch& scratch) {
  if (in.size() == 1) return chunk(in[0], at, count);
  const auto left = static_cast<std::size_t>(left_leaves(static_cast<std::int64_t>(in.size())));
  const std::size_t below = (place / 2 + 1) * 2;
  const auto a = sum_chunk(in.first(left), at, count, below, scratch);
  const auto b = sum_chunk(in.subspan(left), at, count, below + 1, scratch);
  const std::span<float> out(scratch[place].data(), static_cast<std::size_t>(count));
  kernels::sum(a, b, out);
  return out;
}

}  // namespace

void tree_sum(std::span<const float* const> in, std::int64_t count, float* out) {
  ensure(!in.empty() && in.size() < (std::size_t{1} << kMaxDepth), "a sum has inputs");
  if (in.size() == 1) {
    if (in[0] != out) std::copy_n(in[0], count, out);
    return;
  }
  const auto left = static_cast<std::size_t>(left_leaves(static_cast<std::int64_t>(in.size())));
  Scratch scratch(in.size() > 2 ? 2 * (std::bit_width(in.size()) + 1) : 0);
  for (std::int64_t at = 0; at < count; at += kChunk) {
    const std::int64_t n = std::min(kChunk, count - at);
    const auto a = sum_chunk(in.first(left), at, n, 0, scratch);
    const auto b = sum_chunk(in.subspan(left), at, n, 1, scratch);
    kernels::sum(a, b, {out + at, static_cast<std::size_t>(n)});
  }
}

TreeAccumulator::TreeAccumulator(std::vector<std::span<float>> levels, std::int64_t items)
    : levels_(std::move(levels)), items_(items), top_(levels_.size() - 1) {
  ensure(static_cast<int>(levels_.size()) == counter_levels(items), "a counter has its levels");
}

void TreeAccumulator::advance() {
  const auto added = static_cast<std::uint64_t>(count_++);
  // Items 2k and 2k+1 met in level 0. From there a pair moves up past every level that is full.
  std::size_t level = 0;
  for (std::uint64_t bits = added; (bits & 1) != 0 && level + 1 < levels_.size();
       bits >>= 1, ++level) {
    const bool above_is_full = (bits & 2) != 0;
    if (above_is_full) {
      kernels::add(levels_[level + 1], levels_[level]);
    } else {
      std::copy(levels_[level].begin(), levels_[level].end(), levels_[level + 1].begin());
    }
  }
  if (complete() && !std::has_single_bit(static_cast<std::uint64_t>(items_))) gather(items_);
}

bool TreeAccumulator::finish() {
  ensure(count_ > 0, "a sum has items");
  if (complete() || std::exchange(finished_, true)) return false;
  gather(count_);
  top_ = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(count_))) - 1;
  return true;
}

// After a number of items that is no power of two, level l is full where bit l of the number is
// set: add from below.
void TreeAccumulator::gather(std::int64_t items) {
  const auto number = static_cast<std::uint64_t>(items);
  auto lowest = static_cast<std::size_t>(std::countr_zero(number));
  for (std::size_t level = lowest + 1; level < levels_.size(); ++level) {
    if ((number >> level & 1) == 0) continue;
    kernels::add(levels_[level], levels_[lowest]);
    lowest = level;
  }
}

}  // namespace trireme::parallel
