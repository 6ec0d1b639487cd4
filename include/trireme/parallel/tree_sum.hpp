// Sums in the one order that all strategies share. Everything here adds fp32 in a fixed tree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::parallel {

// out[i] = in[0][i] + in[1][i] + ... in binary-counter order over the inputs. `out` may be one of
// the inputs.
void tree_sum(std::span<const float* const> in, std::int64_t count, float* out);

// Adds items one after another in binary-counter order. Level l holds the sum of 2^l items (level
// 0: one or two); the total ends in the top level. The memory is the caller's, one buffer of equal
// size a level.
class TreeAccumulator {
 public:
  TreeAccumulator() = default;
  // `items`: how many will be added. levels.size() == counter_levels(items).
  TreeAccumulator(std::vector<std::span<float>> levels, std::int64_t items);

  // Where the next item goes: overwrite this buffer, or add into it when `adds()`.
  std::span<float> target() const { return levels_[0]; }
  bool adds() const { return (count_ & 1) != 0; }
  // Call when the item is in place: carries full levels upward, and after the last one gathers all
  // into the top level.
  void advance();
  // Starts over.
  void restart() { count_ = 0; }
  bool complete() const { return count_ == items_; }
  std::span<float> total() const { return levels_.back(); }

 private:
  void gather();

  std::vector<std::span<float>> levels_;
  std::int64_t items_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace trireme::parallel
