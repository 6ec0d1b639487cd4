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
  // Ends with what was added so far, one item at least, where that is less than was foreseen. Returns
  // whether there was anything to do: the second time there is not.
  bool finish();
  // Starts over.
  void restart() {
    count_ = 0;
    top_ = levels_.size() - 1;
    finished_ = false;
  }
  bool begun() const { return count_ > 0; }
  bool complete() const { return count_ == items_; }
  // In the top level, unless the end came early.
  std::span<float> total() const { return levels_[top_]; }

 private:
  void gather(std::int64_t items);

  std::vector<std::span<float>> levels_;
  std::int64_t items_ = 0;
  std::int64_t count_ = 0;
  std::size_t top_ = 0;  // the level of the total
  bool finished_ = false;
};

}  // namespace trireme::parallel
