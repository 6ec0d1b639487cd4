// Gathers where the ranks of a run sit (cluster/placement.hpp).
#pragma once

#include "trireme/cluster/placement.hpp"
#include "trireme/train/context.hpp"

#include <vector>

namespace trireme::train {

// @collective. Returns every node with its machine and its ranks' seats on rank 0, nothing elsewhere.
// `threads`: that this rank computes with.
std::vector<cluster::Node> gather_seats(Context& context, int threads);

}  // namespace trireme::train
