// Adds the gradients of one unit over a team of ranks: over those of a node first, through the
// memory that they share, then over nodes; each member gets the sum of its range. Private to the
// room.
#pragma once

#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/team.hpp"

#include "parallel/fabric.hpp"
#include "parallel/sum_messages.hpp"

#include <functional>
#include <span>
#include <vector>

namespace trireme::parallel {

class UnitReducer {
 public:
  // What a rank gets of a unit: Layout::owned or Layout::shard.
  using RangeOf = Range (Layout::*)(std::size_t, Rank) const;

  // `narrow`: partial sums of nodes travel in bf16.
  UnitReducer(Fabric& fabric, const Layout& layout, const Team& team, RangeOf range_of,
              bool narrow);

  // For each unit in the same order on every member. locals[i] = the i-th local member's gradient
  // of the whole unit; no longer needed when this returns.
  void begin(std::size_t unit, std::span<const float* const> locals);
  // Moves on without waiting; returns whether result() is there.
  bool done() { return exchange_->done(); }
  void wait(const std::function<void()>& idle);
  // The sum over the team of this rank's range; valid until the next begin().
  std::span<const float> result();

  Bytes size() const {
    return Bytes(static_cast<std::int64_t>(buffer_.bytes().size()) + messages_.size().value);
  }

 private:
  void add_nodes();
  Range mine() const { return (layout_.*range_of_)(unit_, me_); }

  const Layout& layout_;
  const Team& team_;
  RangeOf range_of_;
  Rank me_;
  Buffer buffer_;
  std::unique_ptr<Exchange> exchange_;
  std::size_t unit_ = 0;
  std::vector<float*> partials_;  // of this rank's range, by node of the team
  SumMessages messages_;
  int tag_ = 0;
};

}  // namespace trireme::parallel
