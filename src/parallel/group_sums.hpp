// Adds the shards that groups of ranks hold as replicas of each other (hsdp): each replica adds its
// part of the shard and gives the sum to the others. Private to the room.
#pragma once

#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/tree_sum.hpp"

#include "parallel/fabric.hpp"
#include "parallel/shard_sums.hpp"
#include "parallel/sum_messages.hpp"

#include <functional>
#include <vector>

namespace trireme::parallel {

class GroupSums {
 public:
  // `narrow`: partial sums of groups travel in bf16.
  GroupSums(Fabric& fabric, const Layout& layout, bool narrow);

  // Starts a step of so many rounds.
  void restart(std::int64_t num_rounds);
  // @collective. Takes this group's sums of a round; after the last one, puts the total of all
  // rounds and groups in their place.
  void add_round(ShardSums& sums, bool last, const std::function<void()>& idle);

  // @collective. Puts the total in their place after fewer rounds than were foreseen.
  void finish(ShardSums& sums, const std::function<void()>& idle);

  Bytes levels() const { return Bytes(static_cast<std::int64_t>(levels_.bytes().size())); }
  Bytes buffers() const {
    return Bytes(static_cast<std::int64_t>(partials_.bytes().size()) + messages_.size().value);
  }

 private:
  Rank replica(int group) const { return layout_.mesh().rank_at(group, place_); }
  std::span<float> add_groups(std::size_t unit, std::span<float> shard,
                              const std::function<void()>& idle);
  void give_total(std::size_t unit, std::span<float> shard, const std::function<void()>& idle);
  std::span<float> part_in(std::span<float> shard, std::size_t unit, Rank owner) const;

  Fabric& fabric_;
  const Layout& layout_;
  Rank me_;
  int place_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::int64_t> offset_;  // of this rank's part of each unit in a level
  std::int64_t owned_ = 0;
  Buffer partials_;  // of this rank's part of a unit, by group
  SumMessages messages_;
  Buffer levels_;  // counter over the rounds
  std::vector<TreeAccumulator> rounds_;
  int tag_ = 0;
};

}  // namespace trireme::parallel
