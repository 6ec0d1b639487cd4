// Gradients of strategies that reduce once a round (ddp, zero1): a rank adds its own micro-batches
// into a window of the whole model's size; at the round's end every rank sums its part of every
// unit over all windows. Private to the room.
#pragma once

#include "trireme/parallel/gradients.hpp"
#include "trireme/parallel/team.hpp"
#include "trireme/parallel/tree_sum.hpp"

#include "parallel/unit_reducer.hpp"

#include <memory>
#include <vector>

namespace trireme::parallel {

class StepGradients : public Gradients {
 public:
  StepGradients(Fabric& fabric, const Layout& layout, const Strategy& strategy,
                const GradientOptions& options);

  void begin_step(const Assignment& assignment) override;
  void end_round() override;
  void finish() override;
  std::span<const float> sum(std::size_t unit, Range range) override;
  Bytes accumulator_bytes() const override;
  Bytes transient_bytes() const override { return reducer_.size(); }

 protected:
  void take_trained(std::size_t unit, std::size_t slot, const at::Tensor& gradient) override;
  void end_unit(std::size_t unit, const std::vector<std::size_t>& missing) override;
  void end_of_turn() override { turns_.advance(); }

 private:
  std::span<float> slot_of(std::span<float> gradient, std::size_t unit, std::size_t slot) const;
  float* window(int local) const;
  void make_counters(std::int64_t turns, std::int64_t rounds);
  void reduce_unit(std::size_t unit, bool last_round);
  void deliver(std::size_t unit, std::span<const float> sum);
  void send_total(std::size_t unit, const float* total);

  Fabric& fabric_;
  Team team_;
  bool all_update_;  // every rank updates everything, and needs all sums
  UnitReducer reducer_;
  std::vector<std::int64_t> unit_offset_;   // of each unit in a full gradient
  std::vector<std::int64_t> owned_offset_;  // of this rank's part of each unit in round_levels_
  std::int64_t full_ = 0;
  std::int64_t owned_ = 0;
  std::unique_ptr<Window> window_;  // the top level of the counter over turns
  Buffer turn_levels_;              // its lower levels
  Buffer round_levels_;             // counter over the rounds, on this rank's parts
  TreeAccumulator turns_;
  std::unique_ptr<Exchange> exchange_;   // of totals
  std::vector<TreeAccumulator> rounds_;  // by unit; none for a single round
  std::int64_t round_ = 0;
  std::int64_t num_rounds_ = 1;
};

}  // namespace trireme::parallel
