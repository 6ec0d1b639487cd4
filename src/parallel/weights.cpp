#include "trireme/parallel/weights.hpp"

#include "trireme/base/error.hpp"
#include "trireme/comm/transfers.hpp"

#include "parallel/order_check.hpp"
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>

namespace trireme::parallel {

int stand_in(const comm::Topology& topology, int node, Rank owner) {
  const auto rank = static_cast<int>(owner.value);
  const int local = rank - topology.first_rank[static_cast<std::size_t>(topology.node_of(rank))];
  return local % topology.ranks_on(node);
}

std::vector<int> stand_ins_of(const comm::Topology& topology, Rank owner) {
  const int home = topology.node_of(static_cast<int>(owner.value));
  std::vector<int> ranks;
  for (int node = 0; node < topology.num_nodes; ++node) {
    if (node == home) continue;
    ranks.push_back(topology.first_rank[static_cast<std::size_t>(node)] +
                    stand_in(topology, node, owner));
  }
  return ranks;
}

std::vector<int> stands_in_for(const comm::Topology& topology, int local_rank) {
  std::vector<int> owners;
  for (int owner = 0; owner < topology.first_rank.back(); ++owner) {
    if (topology.node_of(owner) != topology.node &&
        stand_in(topology, topology.node, Rank(owner)) == local_rank) {
      owners.push_back(owner);
    }
  }
  return owners;
}

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
constexpr int kGatherTags = 1 << 19;  // those of reductions lie above

// A tensor of `parameter`'s shape over memory that this room owns.
at::Tensor view_of(std::byte* data, const at::Tensor& parameter, at::ScalarType type) {
  return at::from_blob(data, parameter.sizes(), at::TensorOptions().dtype(type));
}

}  // namespace

// What is present on this node, in the window's slots. The same on every rank at the same operator.
struct Weights::Gathering {
  std::unordered_map<c10::StorageImpl*, std::size_t> unit_of;
  std::vector<std::vector<at::Tensor>> parameters;  // by unit
  std::vector<std::size_t> in_slot = std::vector<std::size_t>(kPresentUnits, kNone);
  std::vector<std::uint64_t> touched = std::vector<std::uint64_t>(kPresentUnits, 0);
  std::uint64_t clock = 0;
  int gathers = 0;

  std::size_t slot_of(std::size_t unit) const {
    return static_cast<std::size_t>(std::find(in_slot.begin(), in_slot.end(), unit) -
                                    in_slot.begin());
  }
  // The slot touched longest ago, among those that the current operator does not need.
  std::size_t victim(std::span<const std::size_t> needed) const {
    std::size_t best = kNone;
    for (std::size_t s = 0; s < in_slot.size(); ++s) {
      const bool in_use = std::find(needed.begin(), needed.end(), in_slot[s]) != needed.end();
      if (in_slot[s] != kNone && in_use) continue;
      if (best == kNone || touched[s] < touched[best]) best = s;
    }
    return best;
  }
};

Weights::Weights(comm::Session& session, const Layout& layout, const Strategy& strategy,
                 at::ScalarType compute)
    : session_(session),
      layout_(layout),
      compute_(compute),
      gathers_(strategy.work == Placement::kFlatShard && session.topology().num_nodes > 1) {
  std::int64_t offset = 0;
  std::int64_t shard = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    unit_offset_.push_back(offset);
    shard_offset_.push_back(shard);
    offset += layout.unit(u).size;
    shard += layout.shard(u, session.world().rank()).size();
  }
  std::int64_t elements = offset;
  if (gathers_) {
    elements = layout.largest_unit() * kPresentUnits;
    shard_ = memory::HostBuffer(Bytes(shard * static_cast<std::int64_t>(element_size())),
                                "the shard of weights");
    gathering_ = std::make_unique<Gathering>();
    remote_owners_ = stands_in_for(session.topology(), session.node().local_rank());
    control_ = std::make_unique<comm::SharedSegments>(
        session.node().allocate(sizeof(std::atomic<std::uint64_t>)));
    gathering_->parameters.resize(layout.units().size());
  }
  const bool holds = session.node().local_rank() == 0;
  window_ = std::make_unique<comm::SharedSegments>(
      session.node().allocate(holds ? static_cast<std::size_t>(elements) * element_size() : 0));
}

Weights::~Weights() = default;

std::atomic<std::uint64_t>& Weights::unit_in_gather(int local) const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(control_->of(local).data());
}

std::byte* Weights::window_at(std::int64_t element) const {
  return window_->of(0).data() + static_cast<std::size_t>(element) * element_size();
}

void Weights::attach(std::size_t unit, std::vector<at::Tensor> parameters) {
  const std::vector<Slot>& slots = layout_.unit(unit).slots;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t base = gathers_ ? 0 : unit_offset_[unit];
    parameters[i].set_data(view_of(window_at(base + slots[i].offset), parameters[i], compute_));
    if (!gathers_) continue;
    auto* storage = parameters[i].storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(
        at::DataPtr(nullptr, at::kCPU));  // absent until an operator touches it
    gathering_->unit_of[storage] = unit;
  }
  if (gathers_) gathering_->parameters[unit] = std::move(parameters);
}

std::byte* Weights::target(std::size_t unit, std::int64_t offset) const {
  const Rank me = session_.world().rank();
  if (gathers_) {
    const Range mine = layout_.shard(unit, me);
    if (offset < mine.begin || offset >= mine.end) return nullptr;
    return shard_.bytes().data() +
           static_cast<std::size_t>(shard_offset_[unit] + offset - mine.begin) * element_size();
  }
  const comm::Topology& topology = session_.topology();
  for (int owner = 0; owner < layout_.num_ranks(); ++owner) {
    const Range range = layout_.shard(unit, Rank(owner));
    if (offset < range.begin || offset >= range.end) continue;
    const bool writes =
        stand_in(topology, topology.node, Rank(owner)) == session_.node().local_rank();
    return writes ? window_at(unit_offset_[unit] + offset) : nullptr;
  }
  throw Error(ErrorKind::kInternal, "an element of a unit has no owner");
}

void Weights::publish() {
  if (gathers_) {  // what is in the slots is old now
    std::fill(gathering_->in_slot.begin(), gathering_->in_slot.end(), kNone);
    std::fill(gathering_->touched.begin(), gathering_->touched.end(), 0);
    gathering_->clock = 0;
  }
  session_.node().barrier("publish weights");
}

Bytes Weights::share_of_window() const {
  return Bytes(static_cast<std::int64_t>(window_->of(0).size()) / session_.node().size());
}

bool Weights::on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  std::vector<std::size_t> needed;
  const auto note = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = gathering_->unit_of.find(tensor.storage().unsafeGetStorageImpl());
    if (found == gathering_->unit_of.end()) return;
    if (std::find(needed.begin(), needed.end(), found->second) == needed.end())
      needed.push_back(found->second);
  };
  for (const auto& argument : torch::jit::last(stack, op.schema().arguments().size())) {
    if (argument.isTensor()) {
      note(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) note(tensor);
    } else if (argument.isOptionalTensorList()) {
      for (const auto& tensor : argument.toOptionalTensorVector()) {
        if (tensor) note(*tensor);
      }
    }
  }
  if (needed.size() > static_cast<std::size_t>(kPresentUnits)) {
    throw Error(ErrorKind::kConfig,
                fmt::format("operator {} reads weights of {} units at once; at most {} are present",
                            op.schema().name(), needed.size(), kPresentUnits),
                "use strategy ddp for this model");
  }
  for (const std::size_t unit : needed) gather(unit, needed);
  return false;
}

// Every local rank copies its own shard into the node's slot and receives those of the remote ranks
// that it stands in for, so that each remote shard crosses to this node once.
void Weights::gather(std::size_t unit, std::span<const std::size_t> needed) {
  Gathering& state = *gathering_;
  std::size_t slot = state.slot_of(unit);
  if (slot < state.in_slot.size()) {
    state.touched[slot] = ++state.clock;
    return;
  }
  slot = state.victim(needed);
  if (state.in_slot[slot] != kNone) {
    for (at::Tensor& parameter : state.parameters[state.in_slot[slot]]) {
      parameter.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
          at::DataPtr(nullptr, at::kCPU));
    }
  }
  // The barrier ends the reading of the slot, and shows whether this node's ranks are of one mind.
  unit_in_gather(session_.node().local_rank()).store(unit, std::memory_order_release);
  session_.node().barrier("release a unit", idle_);
  for (int local = 0; local < session_.node().size(); ++local) {
    const std::size_t theirs = unit_in_gather(local).load(std::memory_order_acquire);
    if (theirs != unit) throw_other_order(layout_, session_.node().describe(local), theirs, unit);
  }

  const std::int64_t base = static_cast<std::int64_t>(slot) * layout_.largest_unit();
  fill_slot(unit, base);
  session_.node().barrier("gather a unit", idle_);

  const std::vector<Slot>& slots = layout_.unit(unit).slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    state.parameters[unit][i].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        at::DataPtr(window_at(base + slots[i].offset), at::kCPU));
  }
  state.in_slot[slot] = unit;
  state.touched[slot] = ++state.clock;
}

void Weights::fill_slot(std::size_t unit, std::int64_t base) {
  const comm::Topology& topology = session_.topology();
  const Rank me = session_.world().rank();
  const auto bytes_of = [&](Range range) {
    return static_cast<std::size_t>(range.size()) * element_size();
  };
  const std::vector<int> receivers = stand_ins_of(topology, me);
  const int tag = gathering_->gathers++ % kGatherTags;
  require_same_order(session_.world(), layout_, unit, tag, receivers, remote_owners_, idle_);

  comm::Transfers transfers(session_.world());
  const Range mine = layout_.shard(unit, me);
  const std::byte* own =
      shard_.bytes().data() + static_cast<std::size_t>(shard_offset_[unit]) * element_size();
  for (const int receiver : receivers) transfers.send(Rank(receiver), tag, {own, bytes_of(mine)});
  for (const int owner : remote_owners_) {
    const Range range = layout_.shard(unit, Rank(owner));
    transfers.receive(Rank(owner), tag, {window_at(base + range.begin), bytes_of(range)});
  }
  std::copy_n(own, bytes_of(mine), window_at(base + mine.begin));
  transfers.wait("gather a unit", idle_);
}

}  // namespace trireme::parallel
