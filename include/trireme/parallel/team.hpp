// Consecutive ranks that exchange something, and how they lie over nodes: who stands in for whom.
// Each rank's data crosses to another node once, to the member there that stands for it. Pure
// arithmetic.
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/comm/session.hpp"

#include <vector>

namespace trireme::parallel {

class Team {
 public:
  // Ranks [first, first + size) of the world; `me` is one of them.
  Team(const comm::Topology& topology, Rank first, int size, Rank me);

  int size() const { return size_; }
  Rank first() const { return first_; }
  int num_nodes() const { return static_cast<int>(members_.size()); }
  bool on_one_node() const { return num_nodes() == 1; }
  int my_node() const { return my_node_; }  // index among the team's nodes
  // Members on a node of the team, in rank order.
  const std::vector<Rank>& members(int node) const {
    return members_[static_cast<std::size_t>(node)];
  }
  int num_locals() const { return static_cast<int>(locals_.size()); }
  // Members on this node, as local ranks.
  const std::vector<int>& locals() const { return locals_; }
  // This rank's index among them.
  int my_local() const { return my_local_; }

  // The member on `node` that stands for rank `owner` there: the owner itself at home, else one of
  // equal place.
  Rank stand_in(int node, Rank owner) const;
  // The members that stand for this rank on the other nodes, node by node.
  const std::vector<Rank>& my_stand_ins() const { return my_stand_ins_; }
  // The members of other nodes that this rank stands in for.
  const std::vector<Rank>& remote_owners() const { return remote_owners_; }

  // Why sums over nodes first are not a subtree of the order of addition; empty when they are.
  std::string inexact() const;

 private:
  int node_of(Rank rank) const;

  Rank first_;
  int size_;
  std::vector<std::vector<Rank>> members_;  // by node
  std::vector<int> locals_;
  int my_node_ = 0;
  int my_local_ = 0;
  std::vector<Rank> my_stand_ins_;
  std::vector<Rank> remote_owners_;
};

}  // namespace trireme::parallel
