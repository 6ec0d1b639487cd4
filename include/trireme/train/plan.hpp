// What a configuration needs on a number of ranks, before anything is started: for `trireme plan`.
#pragma once

#include "trireme/config/load.hpp"
#include "trireme/parallel/plan.hpp"

#include <string>
#include <utility>
#include <vector>

namespace trireme::train {

struct UnitSize {
  std::string name;
  std::int64_t num_parameters = 0;
};

struct TrainPlan {
  std::int64_t num_parameters = 0;
  std::int64_t num_trained = 0;
  std::vector<UnitSize> units;
  std::vector<parallel::RankPlan> ranks;  // of every rank
  std::size_t largest = 0;                // the rank that needs the most memory
  Bytes activations;                      // of a rank
  std::string activations_by;             // "formula" (model::activation_bytes) or "measurement"
  Bytes checkpoint;
  int num_nodes = 1;
};

// Builds the model's shapes, but no weights. Throws Config as training would.
TrainPlan plan(const config::Config& config, const parallel::Machine& machine);

std::string describe(const TrainPlan& plan, const config::Config& config,
                     const parallel::Machine& machine);
std::string to_json(const TrainPlan& plan, const config::Config& config,
                    const parallel::Machine& machine);

}  // namespace trireme::train
