// What a torch::optim optimizer says, as the fused sharded optimizer of the same name. Private to
// the room.
#pragma once

#include "trireme/optim/optimizer.hpp"

#include <torch/optim/optimizer.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::train {

// Returns a parameter's name in the model at hand; none for one of another model.
using NameOf = std::function<std::optional<std::string>(const at::Tensor&)>;

struct TranslatedOptimizer {
  optim::OptimizerOptions options;
  // Behind the group of parameters that the optimizer does not have: which of its groups each group
  // of `options` is.
  std::vector<std::size_t> group_of;
};

// Throws Config for a type that has no counterpart, with the list of those that have, and for
// settings that groups cannot have each for itself.
TranslatedOptimizer translate(torch::optim::Optimizer& optimizer, const NameOf& name_of);

// What must stay as it was when it was prepared: everything but learning rates.
std::string fingerprint(const torch::optim::Optimizer& optimizer);

}  // namespace trireme::train
