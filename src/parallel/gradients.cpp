#include "trireme/parallel/gradients.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/accumulate.hpp"
#include "trireme/parallel/weights.hpp"

#include "parallel/order_check.hpp"
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>

namespace trireme::parallel {

namespace {

// Unit buffers that a rank fills in turn: one being read by the others, one being filled.
constexpr std::uint64_t kUnitBuffers = 2;

// One per local rank, in shared memory.
struct alignas(128) Control {
  std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> consumed;
  std::atomic<std::uint64_t> unit[kUnitBuffers];
};

Control& control_of(const comm::SharedSegments& segments, int local) {
  return *reinterpret_cast<Control*>(segments.of(local).data());
}

std::span<const float> floats(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

std::span<const kernels::Half> halves(const at::Tensor& tensor) {
  return {reinterpret_cast<const kernels::Half*>(tensor.const_data_ptr<at::BFloat16>()),
          static_cast<std::size_t>(tensor.numel())};
}

// Writes or adds a gradient of any of the compute types into fp32.
void put(const at::Tensor& gradient, bool add, std::span<float> into) {
  const at::Tensor dense = gradient.contiguous();
  ensure(static_cast<std::size_t>(dense.numel()) == into.size(),
         "a gradient has its parameter's size");
  if (dense.scalar_type() == at::kBFloat16) {
    add ? kernels::add_bf16(into, halves(dense)) : kernels::widen_bf16(halves(dense), into);
  } else if (dense.scalar_type() == at::kFloat) {
    if (add) {
      kernels::add(into, floats(dense));
    } else {
      std::copy_n(dense.const_data_ptr<float>(), into.size(), into.begin());
    }
  } else {
    throw Error(ErrorKind::kConfig,
                fmt::format("a gradient of type {} cannot be added", toString(dense.scalar_type())),
                "keep the model's parameters in the type that trireme gave them");
  }
}

std::int64_t bytes_for(std::int64_t elements) {
  return elements * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

Gradients::Gradients(comm::Session& session, const Layout& layout, const Strategy& strategy,
                     const Assignment& assignment)
    : session_(session),
      layout_(layout),
      reduce_at_(strategy.reduce_at),
      num_rounds_(static_cast<std::int64_t>(assignment.rounds.size())),
      reducer_(session, layout) {
  const std::size_t num_units = layout.units().size();
  std::int64_t full = 0;
  for (std::size_t u = 0; u < num_units; ++u) {
    unit_offset_.push_back(full);
    shard_offset_.push_back(shard_elements_);
    full += layout.unit(u).size;
    shard_elements_ += layout.shard(u, session.world().rank()).size();
    held_.emplace_back(layout.unit(u).slots.size());
    taken_.emplace_back(layout.unit(u).slots.size(), false);
  }
  num_held_.assign(num_units, 0);

  const bool at_step = reduce_at_ == ReduceAt::kStep;
  const std::int64_t window =
      at_step ? full : layout.largest_unit() * static_cast<std::int64_t>(kUnitBuffers);
  window_ = std::make_unique<comm::SharedSegments>(
      session.node().allocate(static_cast<std::size_t>(bytes_for(window))));
  control_ = std::make_unique<comm::SharedSegments>(session.node().allocate(sizeof(Control)));

  if (at_step) {
    const std::int64_t items =
        static_cast<std::int64_t>(std::max<std::size_t>(1, assignment.rounds[0].size()));
    const int levels = counter_levels(items);
    micro_levels_ =
        memory::HostBuffer(Bytes(bytes_for(full * (levels - 1))), "gradient accumulators");
    std::vector<std::span<float>> spans;
    for (int level = 0; level + 1 < levels; ++level) {
      spans.push_back(micro_levels_.as<float>(static_cast<std::size_t>(bytes_for(full * level)),
                                              static_cast<std::size_t>(full)));
    }
    spans.emplace_back(reinterpret_cast<float*>(window_->of(session.node().local_rank()).data()),
                       static_cast<std::size_t>(full));
    micro_counter_ = TreeAccumulator(std::move(spans), items);
  }
  // A single round at the step needs no accumulator: the sum goes back into the window.
  if (at_step && num_rounds_ == 1) return;
  const int levels = counter_levels(num_rounds_);
  shard_levels_ = memory::HostBuffer(Bytes(bytes_for(shard_elements_ * levels)), "gradient shards");
  for (std::size_t u = 0; u < num_units; ++u) {
    std::vector<std::span<float>> spans;
    for (int level = 0; level < levels; ++level) spans.push_back(shard_level(level, u));
    shard_counters_.emplace_back(std::move(spans), num_rounds_);
  }
}

Gradients::~Gradients() = default;

std::span<float> Gradients::shard_level(int level, std::size_t unit) const {
  const Range mine = layout_.shard(unit, session_.world().rank());
  const std::int64_t offset = shard_elements_ * level + shard_offset_[unit];
  return shard_levels_.as<float>(static_cast<std::size_t>(bytes_for(offset)),
                                 static_cast<std::size_t>(mine.size()));
}

void Gradients::begin_step() {
  round_ = 0;
  micro_counter_.restart();
  without_gradient_.clear();
  for (TreeAccumulator& counter : shard_counters_) counter.restart();
}

void Gradients::begin_micro_batch(bool discard) {
  discard_ = discard;
  for (auto& slots : taken_) std::fill(slots.begin(), slots.end(), false);
}

void Gradients::take(std::size_t unit, std::size_t slot, const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided) {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("parameter {} has a sparse gradient", layout_.unit(unit).slots[slot].name),
        "make the embedding with sparse(false)");
  }
  ensure(!taken_[unit][slot], "a parameter's gradient is complete once a backward pass");
  taken_[unit][slot] = true;
  if (reduce_at_ == ReduceAt::kStep) {
    add_to_window(unit, slot, gradient);
    return;
  }
  held_[unit][slot] = gradient;
  if (++num_held_[unit] == held_[unit].size()) post(unit);
}

void Gradients::note_missing(std::size_t unit, std::size_t slot) {
  const auto entry = std::make_pair(unit, slot);
  if (std::find(without_gradient_.begin(), without_gradient_.end(), entry) ==
      without_gradient_.end()) {
    without_gradient_.push_back(entry);
  }
}

void Gradients::end_micro_batch() {
  for (std::size_t u = layout_.units().size(); u-- > 0;) {
    const std::vector<Slot>& slots = layout_.unit(u).slots;
    bool missing = false;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (taken_[u][s]) continue;
      if (slots[s].trains) note_missing(u, s);
      missing = true;
      if (reduce_at_ == ReduceAt::kStep && !micro_counter_.adds()) {
        const auto into = micro_counter_.target().subspan(
            static_cast<std::size_t>(unit_offset_[u] + slots[s].offset),
            static_cast<std::size_t>(slots[s].size));
        std::fill(into.begin(), into.end(), 0.0F);
      }
    }
    if (missing && reduce_at_ == ReduceAt::kUnit) post(u);
  }
  if (reduce_at_ == ReduceAt::kStep) micro_counter_.advance();
}

void Gradients::add_to_window(std::size_t unit, std::size_t slot, const at::Tensor& gradient) {
  const Slot& where = layout_.unit(unit).slots[slot];
  put(gradient, micro_counter_.adds(),
      micro_counter_.target().subspan(static_cast<std::size_t>(unit_offset_[unit] + where.offset),
                                      static_cast<std::size_t>(where.size)));
}

void Gradients::end_round() {
  const bool last = ++round_ == num_rounds_;
  if (reduce_at_ == ReduceAt::kStep) {
    reduce_window(last);
    micro_counter_.restart();
  } else {
    drain();
  }
}

void Gradients::finish() { ensure(round_ == num_rounds_, "a step ends after its rounds"); }

// Each rank sums its shard of every unit over the node's windows and over the nodes; the total goes
// back into its own window, where no other rank reads that range before the closing barrier, and to
// its stand-ins on other nodes.
void Gradients::reduce_window(bool last_round) {
  comm::NodeGroup& node = session_.node();
  const comm::Topology& topology = session_.topology();
  const Rank me = session_.world().rank();
  float* const own_window = reinterpret_cast<float*>(window_->of(node.local_rank()).data());
  node.barrier("gradients of a round");
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    std::vector<const float*> locals;
    for (int local = 0; local < node.size(); ++local) {
      locals.push_back(reinterpret_cast<const float*>(window_->of(local).data()) + unit_offset_[u]);
    }
    std::span<const float> sum = reducer_.reduce(u, locals);
    if (!shard_counters_.empty()) {
      add_round(u, sum);
      if (last_round) sum = shard_counters_[u].total();
    }
    if (!last_round) continue;
    const Range mine = layout_.shard(u, me);
    float* const total = own_window + unit_offset_[u] + mine.begin;
    std::copy(sum.begin(), sum.end(), total);
    if (topology.num_nodes > 1) send_total(u, total);
  }
  node.barrier("sums of a round");
}

void Gradients::send_total(std::size_t unit, const float* total) {
  comm::NodeGroup& node = session_.node();
  const comm::Topology& topology = session_.topology();
  const Rank me = session_.world().rank();
  const auto bytes = [](Range range) { return static_cast<std::size_t>(bytes_for(range.size())); };
  comm::Transfers transfers(session_.world());
  const int tag = static_cast<int>(unit);
  for (const int receiver : stand_ins_of(topology, me)) {
    transfers.send(Rank(receiver), tag,
                   {reinterpret_cast<const std::byte*>(total), bytes(layout_.shard(unit, me))});
  }
  // Only this rank of the node reads the window range that it fills here: it is no local rank's own
  // shard.
  auto* own_window = reinterpret_cast<float*>(window_->of(node.local_rank()).data());
  for (const int owner : stands_in_for(topology, node.local_rank())) {
    const Range theirs = layout_.shard(unit, Rank(owner));
    transfers.receive(Rank(owner), tag,
                      {reinterpret_cast<std::byte*>(own_window + unit_offset_[unit] + theirs.begin),
                       bytes(theirs)});
  }
  transfers.wait("distribute summed gradients");
}

void Gradients::add_round(std::size_t unit, std::span<const float> sum) {
  TreeAccumulator& counter = shard_counters_[unit];
  if (counter.adds()) {
    kernels::add(counter.target(), sum);
  } else {
    std::copy(sum.begin(), sum.end(), counter.target().begin());
  }
  counter.advance();
}

std::span<float> Gradients::posted_buffer(int local, std::uint64_t sequence) const {
  const auto size = static_cast<std::size_t>(layout_.largest_unit());
  return {reinterpret_cast<float*>(window_->of(local).data()) + sequence % kUnitBuffers * size,
          size};
}

// Puts a complete unit where the other ranks of the node can read it. Waits only when the buffer's
// previous content has not been read by all, and helps to consume meanwhile.
void Gradients::post(std::size_t unit) {
  comm::NodeGroup& node = session_.node();
  const std::uint64_t sequence = posted_;
  if (sequence >= kUnitBuffers) {
    node.wait_for_all(
        [&](int local) {
          return control_of(*control_, local).consumed.load(std::memory_order_acquire) +
                     kUnitBuffers >
                 sequence;
        },
        "a free gradient buffer", [this] { progress(); });
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
    if (gradient.defined() && !discard_) {
      put(gradient, /*add=*/false, into);
    } else {
      std::fill(into.begin(), into.end(), 0.0F);
    }
    gradient.reset();
  }
  std::fill(buffer.begin() + end, buffer.end(), 0.0F);
  num_held_[unit] = 0;

  Control& mine = control_of(*control_, node.local_rank());
  mine.unit[sequence % kUnitBuffers].store(unit, std::memory_order_relaxed);
  mine.posted.store(++posted_, std::memory_order_release);
  in_flight_.push_back(unit);
  progress();
}

void Gradients::progress() {
  comm::NodeGroup& node = session_.node();
  while (!in_flight_.empty()) {
    for (int local = 0; local < node.size(); ++local) {
      if (control_of(*control_, local).posted.load(std::memory_order_acquire) <= consumed_) return;
    }
    consume();
  }
}

void Gradients::consume() {
  comm::NodeGroup& node = session_.node();
  const std::size_t unit = in_flight_.front();
  std::vector<const float*> locals;
  for (int local = 0; local < node.size(); ++local) {
    const auto theirs =
        control_of(*control_, local).unit[consumed_ % kUnitBuffers].load(std::memory_order_relaxed);
    if (theirs != unit) throw_other_order(layout_, node.describe(local), theirs, unit);
    locals.push_back(posted_buffer(local, consumed_).data());
  }
  add_round(unit, reducer_.reduce(unit, locals));
  in_flight_.pop_front();
  control_of(*control_, node.local_rank()).consumed.store(++consumed_, std::memory_order_release);
}

void Gradients::drain() {
  while (!in_flight_.empty()) {
    session_.node().wait_for_all(
        [&](int local) {
          return control_of(*control_, local).posted.load(std::memory_order_acquire) > consumed_;
        },
        "the gradients of a unit");
    consume();
  }
}

std::span<const float> Gradients::sum(std::size_t unit, Range range) const {
  const auto size = static_cast<std::size_t>(range.size());
  if (reduce_at_ == ReduceAt::kUnit) {
    const Range mine = layout_.shard(unit, session_.world().rank());
    return std::span<const float>(shard_counters_[unit].total())
        .subspan(static_cast<std::size_t>(range.begin - mine.begin), size);
  }
  const comm::Topology& topology = session_.topology();
  for (int owner = 0; owner < layout_.num_ranks(); ++owner) {
    const Range shard = layout_.shard(unit, Rank(owner));
    if (range.begin < shard.begin || range.end > shard.end) continue;
    const int local = stand_in(topology, topology.node, Rank(owner));
    return {reinterpret_cast<const float*>(window_->of(local).data()) + unit_offset_[unit] +
                range.begin,
            size};
  }
  throw Error(ErrorKind::kInternal, "a range of gradients crosses shards");
}

Bytes Gradients::accumulator_bytes() const {
  const auto window = static_cast<std::int64_t>(window_->of(session_.node().local_rank()).size());
  return Bytes(
      static_cast<std::int64_t>(micro_levels_.bytes().size() + shard_levels_.bytes().size()) +
      (reduce_at_ == ReduceAt::kStep ? window : 0));
}

Bytes Gradients::transient_bytes() const {
  const auto window = static_cast<std::int64_t>(window_->of(session_.node().local_rank()).size());
  return Bytes(reducer_.size().value + (reduce_at_ == ReduceAt::kUnit ? window : 0));
}

}  // namespace trireme::parallel
