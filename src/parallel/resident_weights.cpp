#include "parallel/resident_weights.hpp"

#include "trireme/base/error.hpp"

#include "parallel/fabric.hpp"

namespace trireme::parallel {

ResidentWeights::ResidentWeights(Fabric& fabric, const Layout& layout, const Strategy& strategy,
                                 at::ScalarType compute)
    : Weights(layout, compute),
      fabric_(fabric),
      world_(fabric.topology(), Rank(0), layout.num_ranks(), fabric.world().rank()),
      all_update_(strategy.state == Placement::kReplicated) {
  std::size_t size = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    at_.push_back(size);
    size += bytes(u, layout.unit(u).size);
  }
  const bool holds = fabric.node().local_rank() == 0;
  window_ = fabric.window(holds ? size : 0, "weights");
  exchange_ = fabric.exchange(layout, Lane::kGather);
}

std::byte* ResidentWeights::window_at(std::size_t unit, std::int64_t offset) const {
  return window_->of(0).data() + at_[unit] + bytes(unit, offset);
}

void ResidentWeights::attach(std::size_t unit, std::vector<at::Tensor> parameters) {
  const std::vector<Slot>& slots = layout_.unit(unit).slots;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i].set_data(view_of(unit, window_at(unit, slots[i].offset), parameters[i]));
}

// Of the ranks of this node that have a part's new weights, one writes it: with all state
// everywhere they take turns, of the replicas of a shard it is the first here.
bool ResidentWeights::writes(std::size_t unit, int position) const {
  const Rank me = fabric_.world().rank();
  const Rank owner = layout_.owner(unit, position);
  if (all_update_) return world_.stand_in(world_.my_node(), owner) == me;
  const Mesh& mesh = layout_.mesh();
  for (const Rank rank : world_.members(world_.my_node())) {
    if (mesh.place_of(rank) == mesh.place_of(owner)) return rank == me;
  }
  return false;
}

std::byte* ResidentWeights::target(std::size_t unit, std::int64_t offset) {
  for (int position = 0; position < layout_.num_ranks(); ++position) {
    const Range range = layout_.part(unit, position);
    if (offset < range.begin || offset >= range.end) continue;
    return writes(unit, position) ? window_at(unit, offset) : nullptr;
  }
  throw Error(ErrorKind::kInternal, "an element of a unit has no owner");
}

void ResidentWeights::publish(bool frozen_too) {
  const bool only_here = !all_update_ && layout_.mesh().num_groups() == 1;
  if (only_here && !world_.on_one_node()) {
    for (std::size_t u = 0; u < layout_.units().size(); ++u) {
      if (frozen_too || layout_.unit(u).trains) send_to_other_nodes(u);
    }
  }
  fabric_.node().barrier("publish weights", idle_);
}

// Sharded state, whole weights: what one rank updated goes to every other node once.
void ResidentWeights::send_to_other_nodes(std::size_t unit) {
  const auto part_of = [&](Rank owner) {
    const Range part = layout_.owned(unit, owner);
    return std::span(window_at(unit, part.begin), bytes(unit, part.size()));
  };
  std::vector<Outgoing> out;
  for (const Rank receiver : world_.my_stand_ins())
    out.push_back({receiver, part_of(fabric_.world().rank())});
  std::vector<Incoming> in;
  for (const Rank owner : world_.remote_owners()) in.push_back({owner, part_of(owner)});
  exchange_->begin(unit, static_cast<int>(unit), std::move(out), std::move(in));
  exchange_->wait("publish weights", idle_);
}

Bytes ResidentWeights::held_bytes() const {
  return Bytes(static_cast<std::int64_t>(window_->of(0).size()) / fabric_.node().size());
}

}  // namespace trireme::parallel
