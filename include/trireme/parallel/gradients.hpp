// From autograd's gradients to the summed gradient that a rank updates with: fp32, in the one order
// of addition of parallel/tree_sum.hpp, through memory that the ranks of a node share; between
// nodes only partial sums travel.
#pragma once

#include "trireme/memory/tier_file.hpp"
#include "trireme/parallel/disk.hpp"
#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/micro_batches.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace trireme::parallel {

class Fabric;

struct GradientOptions {
  std::int64_t num_micro_batches = 1;  // the most that a step has
  bool dealt = false;                  // in turn (deal_micro_batches)
  DiskOptions disk;                    // for sums of shards
  bool narrow = false;                 // partial sums travel between nodes in bf16
};

class Gradients {
 public:
  explicit Gradients(const Layout& layout);
  virtual ~Gradients() = default;

  virtual void begin_step(const Assignment& assignment);

  // The parts of a turn. take(): autograd has finished the gradient of one parameter. end_turn():
  // backward is over; parameters that got no gradient count as zero. `idle`: the micro-batch was
  // computed only to keep step with the others, and contributes zeros.
  void begin_turn(bool idle);
  void take(std::size_t unit, std::size_t slot, const at::Tensor& gradient);
  void end_turn();
  // Whether any parameter got a gradient in this turn.
  bool any_taken() const;
  // Takes part in the reductions that the others are ready for, without waiting. Called between
  // other work, and while waiting.
  virtual void progress() {}
  // What to call while waiting for other ranks: work that they may need before they get here.
  void set_idle(std::function<void()> idle) { idle_ = std::move(idle); }
  // @collective. After the turns of a round; after the last round sums are readable.
  virtual void end_round() = 0;
  // @collective. Ends a step after fewer rounds, or fewer turns of its last round, than begin_step()
  // was told; end_round() was called for the last one.
  virtual void finish() = 0;

  // Returns the sum over the global batch for a range of a unit, which lies in one part that this
  // rank updates. Valid until the next call.
  virtual std::span<const float> sum(std::size_t unit, Range range) = 0;

  // Parameters that train and had no gradient in any micro-batch of this rank in this step, by
  // (unit, slot).
  std::vector<std::pair<std::size_t, std::size_t>> unused() const;
  // Seconds that reductions between nodes were under way, since the last call.
  virtual double take_exchange_seconds() { return 0; }

  // What this rank keeps for the strategy's `grad` column, on disk, and the buffers that units pass
  // through.
  virtual Bytes accumulator_bytes() const = 0;
  virtual Bytes disk_bytes() const { return Bytes(0); }
  // Of transfers to and from disk, since the last call.
  virtual memory::TierStats take_tier_stats() { return {}; }
  virtual Bytes transient_bytes() const = 0;

 protected:
  // The gradient of a parameter that trains is complete, or there is none in this turn.
  virtual void take_trained(std::size_t unit, std::size_t slot, const at::Tensor& gradient) = 0;
  // `missing`: the unit's slots that got no gradient; none of those is in a frozen unit.
  virtual void end_unit(std::size_t unit, const std::vector<std::size_t>& missing) = 0;
  virtual void end_of_turn() {}

  const Layout& layout_;
  bool idle_turn_ = false;
  std::function<void()> idle_;

 private:
  std::vector<std::vector<bool>> taken_;  // in this turn
  std::vector<std::vector<bool>> used_;   // in this step
};

// @collective.
std::unique_ptr<Gradients> make_gradients(Fabric& fabric, const Layout& layout,
                                          const Strategy& strategy, const GradientOptions& options);

}  // namespace trireme::parallel
