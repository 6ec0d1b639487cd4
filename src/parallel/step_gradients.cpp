#include "parallel/step_gradients.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/accumulate.hpp"

#include "parallel/gradient_values.hpp"

#include <algorithm>

namespace trireme::parallel {

namespace {

std::size_t bytes_for(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

Bytes size_for(std::int64_t elements) {
  return Bytes(static_cast<std::int64_t>(bytes_for(elements)));
}

}  // namespace

StepGradients::StepGradients(Fabric& fabric, const Layout& layout, const Strategy& strategy,
                             const GradientOptions& options)
    : Gradients(layout),
      fabric_(fabric),
      team_(fabric.topology(), Rank(0), layout.num_ranks(), fabric.world().rank()),
      all_update_(strategy.state == Placement::kReplicated),
      reducer_(fabric, layout, team_, &Layout::owned, options.narrow) {
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    unit_offset_.push_back(full_);
    owned_offset_.push_back(owned_);
    if (!layout.unit(u).trains) continue;
    full_ += layout.unit(u).size;
    owned_ += layout.owned(u, fabric.world().rank()).size();
  }
  window_ = fabric.window(bytes_for(full_), "gradients");
  exchange_ = fabric.exchange(layout, Lane::kReduce);
  const int ranks = layout.num_ranks();
  const Rank me = fabric.world().rank();
  const Assignment usual = options.dealt
                               ? deal_micro_batches(options.num_micro_batches / ranks, ranks, 1, me)
                               : assign_micro_batches(options.num_micro_batches, ranks, 1, me);
  make_counters(static_cast<std::int64_t>(usual.rounds[0].size()), usual.num_rounds());
}

float* StepGradients::window(int local) const {
  return reinterpret_cast<float*>(window_->of(local).data());
}

// Memory grows only for a step of another shape than the usual one: the short end of an epoch.
void StepGradients::make_counters(std::int64_t turns, std::int64_t rounds) {
  num_rounds_ = rounds;
  const int lower = counter_levels(std::max<std::int64_t>(1, turns)) - 1;
  if (turn_levels_.bytes().size() < bytes_for(full_ * lower))
    turn_levels_ = fabric_.buffer(size_for(full_ * lower), "gradient accumulators");
  std::vector<std::span<float>> levels;
  for (int level = 0; level < lower; ++level) {
    levels.push_back(
        turn_levels_.as<float>(bytes_for(full_ * level), static_cast<std::size_t>(full_)));
  }
  levels.emplace_back(window(fabric_.node().local_rank()), static_cast<std::size_t>(full_));
  turns_ = TreeAccumulator(std::move(levels), std::max<std::int64_t>(1, turns));

  rounds_.clear();
  if (rounds == 1) return;  // the sum goes straight back into the window
  const int num_levels = counter_levels(rounds);
  if (round_levels_.bytes().size() < bytes_for(owned_ * num_levels))
    round_levels_ = fabric_.buffer(size_for(owned_ * num_levels), "sums of rounds");
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const auto size = static_cast<std::size_t>(
        layout_.unit(u).trains ? layout_.owned(u, fabric_.world().rank()).size() : 0);
    std::vector<std::span<float>> spans;
    for (int level = 0; level < num_levels; ++level) {
      spans.push_back(round_levels_.as<float>(bytes_for(owned_ * level + owned_offset_[u]), size));
    }
    rounds_.emplace_back(std::move(spans), rounds);
  }
}

void StepGradients::begin_step(const Assignment& assignment) {
  Gradients::begin_step(assignment);
  make_counters(static_cast<std::int64_t>(assignment.rounds[0].size()), assignment.num_rounds());
  round_ = 0;
  // A rank without micro-batches of its own adds zeros.
  if (assignment.rounds[0].empty()) std::fill_n(window(fabric_.node().local_rank()), full_, 0.0F);
}

std::span<float> StepGradients::slot_of(std::span<float> gradient, std::size_t unit,
                                        std::size_t slot) const {
  const Slot& where = layout_.unit(unit).slots[slot];
  return gradient.subspan(static_cast<std::size_t>(unit_offset_[unit] + where.offset),
                          static_cast<std::size_t>(where.size));
}

void StepGradients::take_trained(std::size_t unit, std::size_t slot, const at::Tensor& gradient) {
  if (idle_turn_) return end_unit(unit, {slot});
  put(gradient, turns_.adds(), slot_of(turns_.target(), unit, slot));
}

void StepGradients::end_unit(std::size_t unit, const std::vector<std::size_t>& missing) {
  if (turns_.adds()) return;
  for (const std::size_t slot : missing) {
    const auto into = slot_of(turns_.target(), unit, slot);
    std::fill(into.begin(), into.end(), 0.0F);
  }
}

// The total goes back into this rank's own window, where no other rank reads that range before the
// closing barrier.
void StepGradients::end_round() {
  const bool last = ++round_ == num_rounds_;
  if (turns_.begun() && turns_.finish()) {
    const std::span<float> all(window(fabric_.node().local_rank()),
                               static_cast<std::size_t>(full_));
    if (turns_.total().data() != all.data()) std::ranges::copy(turns_.total(), all.begin());
  }
  turns_.restart();
  fabric_.node().barrier("gradients of a round", idle_);
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (layout_.unit(u).trains) reduce_unit(u, last);
  }
  fabric_.node().barrier("sums of a round", idle_);
}

void StepGradients::reduce_unit(std::size_t unit, bool last_round) {
  std::vector<const float*> locals;
  for (const int local : team_.locals()) locals.push_back(window(local) + unit_offset_[unit]);
  reducer_.begin(unit, locals);
  reducer_.wait(idle_);
  std::span<const float> sum = reducer_.result();
  if (!rounds_.empty()) {
    TreeAccumulator& counter = rounds_[unit];
    if (counter.adds()) {
      kernels::add(counter.target(), sum);
    } else {
      std::copy(sum.begin(), sum.end(), counter.target().begin());
    }
    counter.advance();
    if (last_round) sum = counter.total();
  }
  if (last_round) deliver(unit, sum);
}

// Puts this rank's part of the total where all look for it.
void StepGradients::deliver(std::size_t unit, std::span<const float> sum) {
  float* const total = window(fabric_.node().local_rank()) + unit_offset_[unit] +
                       layout_.owned(unit, fabric_.world().rank()).begin;
  std::copy(sum.begin(), sum.end(), total);
  if (all_update_ && !team_.on_one_node()) send_total(unit, total);
}

void StepGradients::finish() {
  if (round_ == num_rounds_) return;
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (!layout_.unit(u).trains) continue;
    rounds_[u].finish();
    deliver(u, rounds_[u].total());
  }
  fabric_.node().barrier("sums of a step", idle_);
}

// Only this rank of the node reads the window range that it receives into: it is no local rank's
// own part.
void StepGradients::send_total(std::size_t unit, const float* total) {
  const auto size = [&](Rank owner) { return bytes_for(layout_.owned(unit, owner).size()); };
  std::vector<Outgoing> out;
  for (const Rank receiver : team_.my_stand_ins()) {
    out.push_back(
        {receiver, {reinterpret_cast<const std::byte*>(total), size(fabric_.world().rank())}});
  }
  float* const unit_in_window = window(fabric_.node().local_rank()) + unit_offset_[unit];
  std::vector<Incoming> in;
  for (const Rank owner : team_.remote_owners()) {
    float* const into = unit_in_window + layout_.owned(unit, owner).begin;
    in.push_back({owner, {reinterpret_cast<std::byte*>(into), size(owner)}});
  }
  exchange_->begin(unit, static_cast<int>(unit), std::move(out), std::move(in));
  exchange_->wait("distribute summed gradients", idle_);
}

std::span<const float> StepGradients::sum(std::size_t unit, Range range) {
  for (int position = 0; position < layout_.num_ranks(); ++position) {
    const Range part = layout_.part(unit, position);
    if (range.begin < part.begin || range.end > part.end) continue;
    const Rank reader = team_.stand_in(team_.my_node(), layout_.owner(unit, position));
    const auto local = reader.value - team_.members(team_.my_node()).front().value;
    return {window(static_cast<int>(local)) + unit_offset_[unit] + range.begin,
            static_cast<std::size_t>(range.size())};
  }
  throw Error(ErrorKind::kInternal, "a range of gradients crosses parts");
}

Bytes StepGradients::accumulator_bytes() const {
  return Bytes(static_cast<std::int64_t>(turn_levels_.bytes().size() +
                                         round_levels_.bytes().size() + bytes_for(full_)));
}

}  // namespace trireme::parallel
