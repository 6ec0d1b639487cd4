// AdamW over the engine's shards: clip, update and the new weights in one pass over memory.
#pragma once

#include "trireme/parallel/engine.hpp"

#include <cstdint>
#include <vector>

namespace trireme::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_all =
      false;  // false: parameters with fewer than two dimensions (norms, biases) do not decay
};

// Returns what to multiply gradients with so that their norm is at most `max_norm` (0: no bound):
// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
double clip_coefficient(double norm, double max_norm);

// Updates every part that this rank holds. `update` counts updates from 1. `grad_scale` is the
// product of everything that gradients are multiplied with (mean over targets, clip). The weights
// become visible with Engine::publish().
void adamw(parallel::Engine& engine, const AdamWOptions& options, double lr, std::int64_t update,
           double grad_scale);

}  // namespace trireme::optim
