#include "parallel/gathered_weights.hpp"

#include "trireme/base/error.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme::parallel {

namespace {

constexpr int kTags = 1 << 19;  // those of reductions lie above

std::int64_t place_size(const Layout& layout, const std::vector<std::size_t>& bytes_of_unit) {
  std::size_t largest = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    largest = std::max(largest, bytes_of_unit[u]);
  return static_cast<std::int64_t>(largest);
}

}  // namespace

// One per local rank, in shared memory.
struct alignas(64) GatheredWeights::Control {
  std::atomic<std::uint64_t> left;    // gathers for which this rank has left the place
  std::atomic<std::uint64_t> unit;    // of the last of them
  std::atomic<std::uint64_t> filled;  // gathers of which this rank's part is in place
};

GatheredWeights::GatheredWeights(Fabric& fabric, const Layout& layout, const WeightOptions& options)
    : Weights(layout, options.compute),
      fabric_(fabric),
      team_(fabric.topology(),
            layout.mesh().rank_at(layout.mesh().group_of(fabric.world().rank()), 0),
            layout.mesh().shard_size, fabric.world().rank()),
      parameters_(layout.units().size()),
      own_places_(options.keep_gathered),
      place_of_(layout.units().size(), kNone),
      exchange_(fabric.exchange(layout, Lane::kGather)) {
  std::size_t shards = 0;
  std::vector<std::size_t> unit_bytes;  // 0 for those that stay
  const bool on_disk = !options.disk.folder.empty();
  std::vector<std::size_t> shard_bytes;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    shard_at_.push_back(on_disk ? 0 : shards);
    shard_bytes.push_back(own_bytes(u));
    shards = on_disk ? std::max(shards, own_bytes(u)) : shards + own_bytes(u);
    unit_bytes.push_back(layout.unit(u).permanent ? 0 : bytes(u, layout.unit(u).size));
  }
  shard_ = fabric.buffer(Bytes(static_cast<std::int64_t>(shards)), "the shard of weights");
  if (on_disk) {
    const auto label = fmt::format("weights of rank {}", fabric.world().rank().value);
    file_ = std::make_unique<UnitFile>(options.disk, label, std::move(shard_bytes));
  }

  std::size_t size = 0;
  const auto add_place = [&](std::size_t place_bytes) {
    places_.push_back({size});
    size += place_bytes;
  };
  if (own_places_) {
    for (const std::size_t unit : unit_bytes) add_place(unit);
  } else {
    const auto largest = static_cast<std::size_t>(place_size(layout, unit_bytes));
    for (std::size_t i = 0; i < kPresentUnits; ++i) add_place(largest);
  }
  num_changing_places_ = places_.size();
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (layout.unit(u).permanent) add_place(bytes(u, layout.unit(u).size));
  }
  window_ = fabric.window(team_.my_local() == 0 ? size : 0, "units in use");
  control_ = std::make_unique<comm::SharedSegments>(fabric.node().allocate(sizeof(Control)));
}

GatheredWeights::~GatheredWeights() = default;

GatheredWeights::Control& GatheredWeights::control(int local) const {
  return *reinterpret_cast<Control*>(control_->of(local).data());
}

std::byte* GatheredWeights::window_at(std::size_t place) const {
  return window_->of(team_.locals().front()).data() + places_[place].at;
}

std::size_t GatheredWeights::own_bytes(std::size_t unit) const {
  return bytes(unit, layout_.shard(unit, fabric_.world().rank()).size());
}

std::span<std::byte> GatheredWeights::own_shard(std::size_t unit) const {
  return shard_.bytes().subspan(shard_at_[unit], own_bytes(unit));
}

std::span<std::byte> GatheredWeights::in_window(std::size_t unit, std::size_t place,
                                                Range range) const {
  return {window_at(place) + bytes(unit, range.begin), bytes(unit, range.size())};
}

// On disk: makes room for a unit's new shard; the one before goes out. What is not written there is
// padding.
void GatheredWeights::stage(std::size_t unit) {
  if (staged_ == unit) return;
  if (staged_ != kNone) file_->write(staged_, own_shard(staged_));
  staged_ = unit;
  if (unit != kNone) std::ranges::fill(own_shard(unit), std::byte{0});
}

void GatheredWeights::attach(std::size_t unit, std::vector<at::Tensor> parameters) {
  for (at::Tensor& parameter : parameters) {
    parameter.set_data(view_of(unit, window_at(0), parameter));
    if (!layout_.unit(unit).permanent) unit_of_[parameter.storage().unsafeGetStorageImpl()] = unit;
  }
  parameters_[unit] = std::move(parameters);
  forget(unit);
}

// The parameters stay without memory until an operator touches one of them.
void GatheredWeights::forget(std::size_t unit) {
  for (at::Tensor& parameter : parameters_[unit]) {
    parameter.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  }
  place_of_[unit] = kNone;
}

std::byte* GatheredWeights::target(std::size_t unit, std::int64_t offset) {
  const Range mine = layout_.shard(unit, fabric_.world().rank());
  if (offset < mine.begin || offset >= mine.end) return nullptr;
  if (file_) stage(unit);
  return own_shard(unit).data() + bytes(unit, offset - mine.begin);
}

// What is in the places is old now.
void GatheredWeights::publish(bool frozen_too) {
  if (pending_) finish_gather();
  if (file_) stage(kNone);
  for (std::size_t p = 0; p < places_.size(); ++p) {
    if (is_permanent(p) && !frozen_too) continue;
    if (places_[p].unit != kNone) forget(places_[p].unit);
    places_[p].unit = kNone;
    places_[p].touched = 0;
  }
  clock_ = 0;
  fabric_.node().barrier("publish weights", idle_);
  if (frozen_too) gather_permanent();
}

void GatheredWeights::gather_permanent() {
  std::size_t place = num_changing_places_;
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (!layout_.unit(u).permanent) continue;
    begin_gather(u, place++);
    finish_gather();
  }
}

void GatheredWeights::begin_pass(Pass pass) {
  order_ = &orders_[static_cast<std::size_t>(pass)];
  order_->begin();
}

std::string GatheredWeights::take_note() {
  if (noted_ || !orders_[0].has_changed()) return {};
  noted_ = true;
  return "the model uses its blocks in an order that changes from micro-batch to micro-batch: "
         "weights are gathered when they are needed, not before";
}

Bytes GatheredWeights::transient_bytes() const {
  const auto size = static_cast<std::int64_t>(window_->of(team_.locals().front()).size());
  const std::int64_t staging =
      file_ ? static_cast<std::int64_t>(shard_.bytes().size()) + file_->memory().value : 0;
  return Bytes(size / team_.num_locals() + staging);
}

bool GatheredWeights::on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  std::vector<std::size_t> needed;
  const auto note = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = unit_of_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == unit_of_.end()) return;
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
  if (needed.empty()) {
    progress();
    return false;
  }
  if (needed.size() > num_changing_places_) {
    throw Error(ErrorKind::kConfig,
                fmt::format("operator {} reads weights of {} units at once; at most {} are present",
                            op.schema().name(), needed.size(), num_changing_places_),
                "set parallel.reshard_after_forward: false, or use strategy zero2");
  }
  for (const std::size_t unit : needed) need(unit, needed);
  look_ahead(needed);
  return false;
}

void GatheredWeights::need(std::size_t unit, std::span<const std::size_t> needed) {
  order_->touch(unit);
  if (!is_present(unit)) {
    const auto start = Clock::now();
    if (pending_) finish_gather();  // this unit, or one that the order promised
    if (!is_present(unit)) {
      begin_gather(unit, victim(needed, unit));
      finish_gather();
    }
    times_.waited += seconds_since(start);
  }
  places_[place_of_[unit]].touched = ++clock_;
}

// Begins to gather what comes next, while the operator runs.
void GatheredWeights::look_ahead(std::span<const std::size_t> needed) {
  if (pending_) return progress();
  const std::size_t next = order_->next_absent([this](std::size_t u) { return is_present(u); });
  if (next == kNone) return;
  const std::size_t place = victim(needed, next);
  if (place == kNone) return;
  // Not in the place of a unit that is needed before it.
  const std::size_t old = places_[place].unit;
  if (old != kNone && order_->distance(old) < order_->distance(next)) return;
  begin_gather(next, place);
}

// The place for a unit: that whose present unit is touched again last, as far as is known; else that touched longest ago.
// Never one that the operator at hand needs.
std::size_t GatheredWeights::victim(std::span<const std::size_t> needed, std::size_t unit) const {
  if (own_places_) return unit;
  std::size_t best = kNone;
  const auto later = [&](const Place& a, const Place& b) {
    if (order_->follows()) {
      const std::size_t next_a = order_->distance(a.unit);
      const std::size_t next_b = order_->distance(b.unit);
      if (next_a != next_b) return next_a > next_b;
    }
    return a.touched < b.touched;
  };
  for (std::size_t p = 0; p < num_changing_places_; ++p) {
    if (places_[p].unit == kNone) return p;
    if (std::find(needed.begin(), needed.end(), places_[p].unit) != needed.end()) continue;
    if (best == kNone || later(places_[p], places_[best])) best = p;
  }
  return best;
}

// This rank leaves the place; its own shard sets out for the other nodes, or from the disk.
void GatheredWeights::begin_gather(std::size_t unit, std::size_t place) {
  if (places_[place].unit != kNone) forget(places_[place].unit);
  places_[place].unit = unit;
  pending_ = Gather{unit, place, num_gathers_++, false, Clock::now()};
  Control& mine = control(fabric_.node().local_rank());
  mine.unit.store(unit, std::memory_order_relaxed);
  mine.left.store(num_gathers_, std::memory_order_release);
  if (file_) {
    file_->begin_read(unit);
  } else {
    begin_exchange();
  }
}

void GatheredWeights::begin_exchange() {
  const std::size_t unit = pending_->unit;
  const Range mine = layout_.shard(unit, fabric_.world().rank());
  // What came from disk is in its place in the window already.
  const std::span<const std::byte> own =
      file_ ? in_window(unit, pending_->place, mine) : own_shard(unit);
  std::vector<Outgoing> out;
  for (const Rank receiver : team_.my_stand_ins()) out.push_back({receiver, own});
  std::vector<Incoming> in;
  if (!file_) {
    out.push_back({fabric_.world().rank(), own});
    in.push_back({fabric_.world().rank(), in_window(unit, pending_->place, mine)});
  }
  for (const Rank owner : team_.remote_owners())
    in.push_back({owner, in_window(unit, pending_->place, layout_.shard(unit, owner))});
  exchange_->begin(unit, static_cast<int>(pending_->number % kTags), std::move(out), std::move(in));
}

// Once all local ranks have left the place, shards may be put there.
void GatheredWeights::move() {
  for (const int local : team_.locals()) {
    const std::uint64_t theirs = control(local).unit.load(std::memory_order_relaxed);
    const bool at_this = control(local).left.load(std::memory_order_acquire) == num_gathers_;
    if (at_this && theirs != pending_->unit)
      throw_other_order(layout_, fabric_.node().describe(local), theirs, pending_->unit);
  }
  pending_->moving = true;
  if (!file_) return;
  file_->end_read(in_window(pending_->unit, pending_->place,
                            layout_.shard(pending_->unit, fabric_.world().rank())));
  begin_exchange();
}

void GatheredWeights::progress() {
  if (!pending_) return;
  Control& mine = control(fabric_.node().local_rank());
  if (mine.filled.load(std::memory_order_relaxed) == num_gathers_) return;
  if (!pending_->moving) {
    if (file_) return;  // the disk goes on by itself; its end is waited for when it is needed
    for (const int local : team_.locals()) {
      if (control(local).left.load(std::memory_order_acquire) < num_gathers_) return;
    }
    move();
  }
  if (!exchange_->done()) return;
  mine.filled.store(num_gathers_, std::memory_order_release);
  times_.under_way += seconds_since(pending_->began);
}

void GatheredWeights::finish_gather() {
  comm::NodeGroup& node = fabric_.node();
  const auto& locals = team_.locals();
  const auto all = [&](auto counter, std::string_view what) {
    node.wait_for_all(
        [&](int local) {
          return !std::binary_search(locals.begin(), locals.end(), local) ||
                 (control(local).*counter).load(std::memory_order_acquire) >= num_gathers_;
        },
        what, idle_);
  };
  Control& mine = control(node.local_rank());
  if (mine.filled.load(std::memory_order_relaxed) < num_gathers_) {
    if (!pending_->moving) {
      all(&Control::left, "release a unit");
      if (!pending_->moving) move();
    }
    exchange_->wait("gather a unit", idle_);
    if (mine.filled.load(std::memory_order_relaxed) < num_gathers_) {
      mine.filled.store(num_gathers_, std::memory_order_release);
      times_.under_way += seconds_since(pending_->began);
    }
  }
  all(&Control::filled, "gather a unit");

  const std::size_t unit = pending_->unit;
  const std::vector<Slot>& slots = layout_.unit(unit).slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    parameters_[unit][i].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        at::DataPtr(window_at(pending_->place) + bytes(unit, slots[i].offset), at::kCPU));
  }
  place_of_[unit] = pending_->place;
  places_[pending_->place].touched = clock_;
  pending_.reset();
}

}  // namespace trireme::parallel
