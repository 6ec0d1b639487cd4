// Gradients of strategies that reduce unit by unit during backward (zero2, zero3, hsdp): a unit's
// gradients are posted where the node's ranks see them as soon as they are complete; each rank of
// the group adds its shard of them, while backward goes on. Groups that are replicas of each other
// add their shards at the round's end. Private to the room.
#pragma once

#include "trireme/base/deadline.hpp"
#include "trireme/parallel/gradients.hpp"
#include "trireme/parallel/team.hpp"

#include "parallel/group_sums.hpp"
#include "parallel/shard_sums.hpp"
#include "parallel/unit_reducer.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::parallel {

class UnitGradients : public Gradients {
 public:
  UnitGradients(Fabric& fabric, const Layout& layout, const GradientOptions& options);
  ~UnitGradients() override;

  void begin_step(const Assignment& assignment) override;
  void progress() override;
  void end_round() override;
  void finish() override;
  std::span<const float> sum(std::size_t unit, Range range) override;
  double take_exchange_seconds() override { return std::exchange(exchange_seconds_, 0.0); }
  Bytes accumulator_bytes() const override;
  Bytes disk_bytes() const override { return sums_.disk(); }
  memory::TierStats take_tier_stats() override { return sums_.take_stats(); }
  Bytes transient_bytes() const override;

 protected:
  void take_trained(std::size_t unit, std::size_t slot, const at::Tensor& gradient) override;
  void end_unit(std::size_t unit, const std::vector<std::size_t>& missing) override;

 private:
  struct Control;

  Control& control(int local) const;
  std::span<float> posted_buffer(int local, std::uint64_t sequence) const;
  void post(std::size_t unit);
  bool is_posted_by(int local) const;
  void begin_reduction();
  void finish_reduction();
  void drain();

  Fabric& fabric_;
  Team team_;
  UnitReducer reducer_;
  ShardSums sums_;
  std::optional<GroupSums> groups_;  // only with several groups
  std::vector<std::int64_t> turns_;  // by round of this step
  std::size_t round_ = 0;
  bool restart_due_ = false;  // sums_ still holds the round before

  std::vector<std::vector<at::Tensor>> held_;  // gradients of units that are not complete yet
  std::vector<std::size_t> num_held_;
  std::int64_t largest_ = 0;        // unit that trains
  std::unique_ptr<Window> window_;  // a rank's unit buffers, filled in turn
  std::unique_ptr<comm::SharedSegments> control_;
  std::deque<std::size_t> posted_units_;  // posted here, their reduction not begun
  std::uint64_t posted_ = 0;
  std::uint64_t consumed_ = 0;
  std::optional<std::size_t> reducing_;  // the unit whose reduction is under way
  bool busy_ = false;  // inside a reduction: what is called while waiting must not enter again
  Clock::time_point reduction_began_;
  double exchange_seconds_ = 0;
};

}  // namespace trireme::parallel
