// Between the engine, the optimizer and stored checkpoints: what is stored under which name.
// With several models, those behind the first are /model_1, /optimizer_1 and so on.
//   /model/<parameter>              master weights
//   /optimizer/<slot>/<parameter>   what the optimizer keeps, by torch's names (exp_avg, ...); only
//                                   of parameters that train
#pragma once

#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/train/state.hpp"

#include <optional>
#include <string>
#include <vector>

namespace trireme::train {

// Returns everything needed to go on, as extents of this rank's memory: valid while the engine and
// the optimizer live and until the next update.
ckpt::Snapshot snapshot(parallel::Engine& engine, optim::Optimizer& optimizer,
                        const TrainingState& state, const std::string& config_yaml);

// Fills master weights and the optimizer's state on this rank and returns the counters;
// Engine::refresh_work() must follow on all ranks. A checkpoint of weights alone, as an import makes
// it, has no counters: nothing is returned and the optimizer starts afresh. Throws Config when the
// checkpoint is of another model or optimizer, Corrupt when it is damaged.
std::optional<TrainingState> restore(parallel::Engine& engine, optim::Optimizer& optimizer,
                                     const ckpt::Reader& reader);

// A model of several, or without an optimizer. `place`: its number in the checkpoint.
struct Stored {
  parallel::Engine& engine;
  optim::Optimizer* optimizer = nullptr;
  int place = 0;
};
// The tensors of all of them, without texts.
ckpt::Snapshot snapshot(const std::vector<Stored>& models);
// As above, for all of them. Throws Config when the checkpoint has more models, or others.
void restore(const std::vector<Stored>& models, const ckpt::Reader& reader);

}  // namespace trireme::train
