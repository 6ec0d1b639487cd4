#include "trireme/parallel/team.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace trireme::parallel {

Team::Team(const comm::Topology& topology, Rank first, int size, Rank me)
    : first_(first), size_(size) {
  int last_node = -1;
  for (int i = 0; i < size; ++i) {
    const Rank rank(first.value + i);
    const int node = topology.node_of(static_cast<int>(rank.value));
    if (node != last_node) members_.emplace_back();
    last_node = node;
    members_.back().push_back(rank);
    if (node != topology.node) continue;
    my_node_ = num_nodes() - 1;
    if (rank == me) my_local_ = num_locals();
    locals_.push_back(static_cast<int>(rank.value) -
                      topology.first_rank[static_cast<std::size_t>(node)]);
  }
  for (int node = 0; node < num_nodes(); ++node) {
    if (node == my_node_) continue;
    my_stand_ins_.push_back(stand_in(node, me));
    for (const Rank owner : members(node)) {
      if (stand_in(my_node_, owner) == me) remote_owners_.push_back(owner);
    }
  }
}

int Team::node_of(Rank rank) const {
  int node = 0;
  while (members(node).back() < rank) ++node;
  return node;
}

Rank Team::stand_in(int node, Rank owner) const {
  const std::vector<Rank>& home = members(node_of(owner));
  const auto place = static_cast<std::size_t>(owner.value - home.front().value);
  return members(node)[place % members(node).size()];
}

std::string Team::inexact() const {
  if (on_one_node()) return {};
  const std::size_t ranks = members_[0].size();
  for (const auto& node : members_) {
    if (node.size() != ranks) return "nodes have different numbers of ranks";
  }
  if (!std::has_single_bit(ranks))
    return fmt::format("{} ranks on a node is not a power of two", ranks);
  return {};
}

}  // namespace trireme::parallel
