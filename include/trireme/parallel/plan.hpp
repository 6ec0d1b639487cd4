// What a rank will need, before anything is started: memory by kind and tier, bytes sent between
// nodes, and the size of a checkpoint, from a model's units and a number of ranks. Pure arithmetic;
// tests hold it to what engines use.
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/layout.hpp"

#include <cstdint>
#include <vector>

namespace trireme::parallel {

// Ranks, and how many of them share a node; the last node may have fewer.
struct Machine {
  int num_ranks = 1;
  int ranks_per_node = 1;
};

struct RankPlan {
  MemoryUse memory;
  // Between nodes, a step: weights gathered or published, gradients added.
  Bytes sent_weights;
  Bytes sent_gradients;
};

// Returns what rank `rank` needs for the units of describe(). With `passes` forward and backward
// passes a micro-batch over a unit (3 where blocks are recomputed), for weights that come and go.
// Throws Config as Engine does.
RankPlan plan_rank(const std::vector<Unit>& units, const EngineOptions& options,
                   const Machine& machine, Rank rank, int passes = 2);

// Bytes of state.h5: master weights in fp32 and the moments of what trains, without the file's head.
Bytes checkpoint_size(const std::vector<Unit>& units, const EngineOptions& options);

}  // namespace trireme::parallel
