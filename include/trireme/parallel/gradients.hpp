// From autograd's gradients to the summed gradient that a rank updates with. fp32, in the one order
// of addition of parallel/tree_sum.hpp, through memory that the ranks of a node share; between
// nodes only partial sums travel.
#pragma once

#include "trireme/comm/session.hpp"
#include "trireme/comm/transfers.hpp"
#include "trireme/memory/host_buffer.hpp"
#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/micro_batches.hpp"
#include "trireme/parallel/tree_sum.hpp"

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace trireme::parallel {

// Adds the gradients of one range of a unit over all ranks of all nodes.
class RangeReducer {
 public:
  RangeReducer(comm::Session& session, const Layout& layout);

  // @collective, for each unit in the same order. locals[l] = local rank l's gradient of the whole
  // unit. Returns the sum over all ranks of this rank's shard of the unit; valid until the next
  // call. May alias nothing of `locals`.
  std::span<const float> reduce(std::size_t unit, std::span<const float* const> locals);

  Bytes size() const { return Bytes(static_cast<std::int64_t>(buffer_.bytes().size())); }

 private:
  std::span<const float> across_nodes(std::size_t unit, std::span<const float* const> locals);
  void sum_locals(std::span<const float* const> locals, Range range, float* out) const;

  comm::Session& session_;
  const Layout& layout_;
  memory::HostBuffer buffer_;
  std::vector<int>
      remote_owners_;           // ranks of other nodes whose shards this rank sums over its node
  std::vector<int> stand_ins_;  // who does so for this rank's shards, on each other node
  int tag_ = 0;
};

class Gradients {
 public:
  // @collective.
  Gradients(comm::Session& session, const Layout& layout, const Strategy& strategy,
            const Assignment& assignment);
  ~Gradients();

  void begin_step();

  // The parts of a micro-batch. take(): autograd has finished the gradient of one parameter.
  // end_micro_batch(): backward is over; parameters that got no gradient count as zero. `discard`:
  // the micro-batch was computed only to keep step with the others, and contributes zeros.
  void begin_micro_batch(bool discard);
  void take(std::size_t unit, std::size_t slot, const at::Tensor& gradient);
  void end_micro_batch();
  // Takes part in the reductions that all local ranks are ready for. Called between other work, and
  // while waiting.
  void progress();
  // @collective. After the rank's micro-batches of a round.
  void end_round();
  // @collective. After the last round: from here on sums are readable.
  void finish();

  // Returns the sum over the global batch for a range of a unit that this rank updates; the range
  // lies in one shard.
  std::span<const float> sum(std::size_t unit, Range range) const;

  // Parameters that had no gradient in some micro-batch of this step, by (unit, slot); for a
  // message.
  const std::vector<std::pair<std::size_t, std::size_t>>& without_gradient() const {
    return without_gradient_;
  }

  // What this rank keeps for the strategy's `grad` column, and the buffers that units pass through.
  Bytes accumulator_bytes() const;
  Bytes transient_bytes() const;

 private:
  void note_missing(std::size_t unit, std::size_t slot);
  // ReduceAt::kStep
  void add_to_window(std::size_t unit, std::size_t slot, const at::Tensor& gradient);
  void reduce_window(bool last_round);
  void send_total(std::size_t unit, const float* total);
  // ReduceAt::kUnit
  void post(std::size_t unit);
  void consume();
  void drain();
  std::span<float> posted_buffer(int local, std::uint64_t sequence) const;

  std::span<float> shard_level(int level, std::size_t unit) const;
  void add_round(std::size_t unit, std::span<const float> sum);

  comm::Session& session_;
  const Layout& layout_;
  ReduceAt reduce_at_;
  std::int64_t num_rounds_;
  std::int64_t round_ = 0;
  bool discard_ = false;
  RangeReducer reducer_;

  std::vector<std::int64_t> unit_offset_;   // of each unit in a full gradient
  std::vector<std::int64_t> shard_offset_;  // of this rank's shard of each unit in shard_levels_
  std::int64_t shard_elements_ = 0;

  std::unique_ptr<comm::SharedSegments>
      window_;  // kStep: full gradients; kUnit: unit buffers in turn
  std::unique_ptr<comm::SharedSegments> control_;
  memory::HostBuffer
      micro_levels_;  // kStep: lower levels of the counter over a round's micro-batches
  TreeAccumulator micro_counter_;
  memory::HostBuffer shard_levels_;              // counter over the rounds, on this rank's shards
  std::vector<TreeAccumulator> shard_counters_;  // by unit

  std::vector<std::vector<at::Tensor>>
      held_;  // kUnit: gradients of units that are not complete yet
  std::vector<std::size_t> num_held_;
  std::vector<std::vector<bool>> taken_;
  std::deque<std::size_t> in_flight_;  // units posted and not yet consumed here
  std::uint64_t posted_ = 0;
  std::uint64_t consumed_ = 0;
  std::vector<std::pair<std::size_t, std::size_t>> without_gradient_;
};

}  // namespace trireme::parallel
