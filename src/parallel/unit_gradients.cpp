#include "parallel/unit_gradients.hpp"

#include "trireme/base/error.hpp"

#include "parallel/gradient_values.hpp"

#include <algorithm>
#include <atomic>

namespace trireme::parallel {

namespace {

// Unit buffers that a rank fills in turn: one being read by the others, one being filled.
constexpr std::uint64_t kUnitBuffers = 2;

std::size_t bytes_for(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

// The most turns that a round of any step may have.
std::int64_t most_turns(std::int64_t micro_batches, const Mesh& mesh) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  return up(up(micro_batches, mesh.num_groups()), mesh.shard_size);
}

}  // namespace

// One per local rank, in shared memory.
struct alignas(128) UnitGradients::Control {
  std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> consumed;
  std::atomic<std::uint64_t> unit[kUnitBuffers];
};

UnitGradients::UnitGradients(Fabric& fabric, const Layout& layout, const GradientOptions& options)
    : Gradients(layout),
      fabric_(fabric),
      team_(fabric.topology(),
            layout.mesh().rank_at(layout.mesh().group_of(fabric.world().rank()), 0),
            layout.mesh().shard_size, fabric.world().rank()),
      reducer_(fabric, layout, team_, &Layout::shard, options.narrow),
      sums_(fabric, layout, most_turns(options.num_micro_batches, layout.mesh()), options.disk) {
  for (const Unit& unit : layout.units()) {
    held_.emplace_back(unit.slots.size());
    if (unit.trains) largest_ = std::max(largest_, unit.size);
  }
  num_held_.assign(layout.units().size(), 0);
  window_ = fabric.window(bytes_for(largest_) * kUnitBuffers, "gradients of units");
  control_ = std::make_unique<comm::SharedSegments>(fabric.node().allocate(sizeof(Control)));
  if (layout.mesh().num_groups() > 1)
    groups_.emplace(fabric, layout, options.narrow && fabric.topology().num_nodes > 1);
  begin_step(assign_micro_batches(options.num_micro_batches, layout.num_ranks(), team_.size(),
                                  fabric.world().rank()));
}

UnitGradients::~UnitGradients() = default;

UnitGradients::Control& UnitGradients::control(int local) const {
  return *reinterpret_cast<Control*>(control_->of(local).data());
}

void UnitGradients::begin_step(const Assignment& assignment) {
  Gradients::begin_step(assignment);
  round_ = 0;
  turns_.clear();
  for (const auto& round : assignment.rounds)
    turns_.push_back(static_cast<std::int64_t>(round.size()));
  restart_due_ = false;
  sums_.restart(turns_[0]);
  if (groups_) groups_->restart(assignment.num_rounds());
}

void UnitGradients::take_trained(std::size_t unit, std::size_t slot, const at::Tensor& gradient) {
  held_[unit][slot] = gradient;
  if (++num_held_[unit] == held_[unit].size()) {
    post(unit);
  } else {
    progress();
  }
}

void UnitGradients::end_unit(std::size_t unit, const std::vector<std::size_t>& missing) {
  if (!missing.empty()) post(unit);
}

std::span<float> UnitGradients::posted_buffer(int local, std::uint64_t sequence) const {
  const auto size = static_cast<std::size_t>(largest_);
  return {reinterpret_cast<float*>(window_->of(local).data()) + sequence % kUnitBuffers * size,
          size};
}

// Puts a complete unit where the other ranks of the node can read it. Waits only when the buffer's
// previous content has not been read by all, and helps to reduce meanwhile.
void UnitGradients::post(std::size_t unit) {
  comm::NodeGroup& node = fabric_.node();
  const std::uint64_t sequence = posted_;
  const auto& locals = team_.locals();
  if (sequence >= kUnitBuffers) {
    node.wait_for_all(
        [&](int local) {
          return !std::binary_search(locals.begin(), locals.end(), local) ||
                 control(local).consumed.load(std::memory_order_acquire) + kUnitBuffers > sequence;
        },
        "a free gradient buffer", idle_);
  }
  const Unit& layout = layout_.unit(unit);
  const auto buffer =
      posted_buffer(node.local_rank(), sequence).first(static_cast<std::size_t>(layout.size));
  std::int64_t end = 0;
  for (std::size_t s = 0; s < layout.slots.size(); ++s) {
    const Slot& slot = layout.slots[s];
    std::fill(buffer.begin() + end, buffer.begin() + slot.offset, 0.0F);
    end = slot.offset + slot.size;
    const auto into =
        buffer.subspan(static_cast<std::size_t>(slot.offset), static_cast<std::size_t>(slot.size));
    at::Tensor& gradient = held_[unit][s];
    if (gradient.defined() && !idle_turn_) {
      put(gradient, /*add=*/false, into);
    } else {
      std::fill(into.begin(), into.end(), 0.0F);
    }
    gradient.reset();
  }
  std::fill(buffer.begin() + end, buffer.end(), 0.0F);
  num_held_[unit] = 0;

  Control& mine = control(node.local_rank());
  mine.unit[sequence % kUnitBuffers].store(unit, std::memory_order_relaxed);
  mine.posted.store(++posted_, std::memory_order_release);
  posted_units_.push_back(unit);
  progress();
}

bool UnitGradients::is_posted_by(int local) const {
  return control(local).posted.load(std::memory_order_acquire) > consumed_;
}

void UnitGradients::progress() {
  if (busy_) return;
  for (;;) {
    if (reducing_) {
      if (!reducer_.done()) return;
      finish_reduction();
    }
    if (posted_units_.empty()) return;
    for (const int local : team_.locals()) {
      if (!is_posted_by(local)) return;
    }
    begin_reduction();
  }
}

void UnitGradients::begin_reduction() {
  const std::size_t unit = posted_units_.front();
  std::vector<const float*> locals;
  for (const int local : team_.locals()) {
    const auto theirs =
        control(local).unit[consumed_ % kUnitBuffers].load(std::memory_order_relaxed);
    if (theirs != unit) throw_other_order(layout_, fabric_.node().describe(local), theirs, unit);
    locals.push_back(posted_buffer(local, consumed_).data());
  }
  reduction_began_ = Clock::now();
  reducer_.begin(unit, locals);
  reducing_ = unit;
  posted_units_.pop_front();
  control(fabric_.node().local_rank()).consumed.store(++consumed_, std::memory_order_release);
}

void UnitGradients::finish_reduction() {
  if (!team_.on_one_node()) exchange_seconds_ += seconds_since(reduction_began_);
  if (std::exchange(restart_due_, false)) sums_.restart(turns_[round_]);
  sums_.add(*reducing_, reducer_.result());
  reducing_.reset();
}

void UnitGradients::drain() {
  busy_ = true;
  const auto& locals = team_.locals();
  while (reducing_ || !posted_units_.empty()) {
    if (reducing_) {
      reducer_.wait(idle_);
      finish_reduction();
      continue;
    }
    fabric_.node().wait_for_all(
        [&](int local) {
          return !std::binary_search(locals.begin(), locals.end(), local) || is_posted_by(local);
        },
        "the gradients of a unit", idle_);
    begin_reduction();
  }
  busy_ = false;
}

void UnitGradients::end_round() {
  drain();
  const bool last = ++round_ == turns_.size();
  if (groups_) {
    busy_ = true;
    groups_->add_round(sums_, last, idle_);
    busy_ = false;
  }
  restart_due_ = !last;
}

void UnitGradients::finish() {
  if (groups_) groups_->finish(sums_, idle_);
}

std::span<const float> UnitGradients::sum(std::size_t unit, Range range) {
  const Range mine = layout_.shard(unit, fabric_.world().rank());
  return std::span<const float>(sums_.total(unit))
      .subspan(static_cast<std::size_t>(range.begin - mine.begin),
               static_cast<std::size_t>(range.size()));
}

Bytes UnitGradients::accumulator_bytes() const {
  return Bytes(sums_.memory().value + (groups_ ? groups_->levels().value : 0));
}

Bytes UnitGradients::transient_bytes() const {
  return Bytes(reducer_.size().value + sums_.transient().value +
               static_cast<std::int64_t>(bytes_for(largest_) * kUnitBuffers) +
               (groups_ ? groups_->buffers().value : 0));
}

}  // namespace trireme::parallel
