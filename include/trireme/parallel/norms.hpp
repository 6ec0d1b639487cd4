// Sums of squares of the gradient by group of parameters, added in one order whatever the number of
// ranks: a rank sums its parts block by block, and everybody adds the blocks of all ranks in the
// order of the layout. Pure arithmetic over a layout; who sends what is the engine's.
#pragma once

#include "trireme/parallel/layout.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace trireme::parallel {

// Returns the norm group of a parameter, from 0.
using NormGroupOf = std::function<int(const Slot&)>;

class Norms {
 public:
  // `group_of` may be empty where there is one group. The layout must outlive this.
  Norms(const Layout& layout, int num_groups, const NormGroupOf& group_of);

  // Appends the sums over the part of a unit that this rank owns, whose gradient is `gradient`: one
  // for each block where there is one group, otherwise one for each part of a parameter in a block.
  // Units that do not train are left out.
  void append(std::size_t unit, Range owned, std::span<const float> gradient,
              std::vector<double>& sums) const;

  // Adds what append() gave on each rank for all units in order; returns a sum a group.
  std::vector<double> total(const std::vector<std::vector<double>>& by_rank) const;

 private:
  int group(std::size_t unit, std::size_t slot) const { return groups_[unit][slot]; }

  const Layout& layout_;
  int num_groups_;
  std::vector<std::vector<int>> groups_;  // by unit and slot
};

}  // namespace trireme::parallel
