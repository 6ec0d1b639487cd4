// Between the engine and stored checkpoints.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/train/state.hpp"

#include <filesystem>
#include <string>

namespace trireme::train {

// Returns everything needed to go on, as extents of this rank's memory: valid while the engine
// lives and until its next update.
ckpt::Snapshot snapshot(parallel::Engine& engine, const TrainingState& state,
                        const std::string& config_yaml);

// Fills the engine's master weights and moments on this rank and returns the counters;
// Engine::refresh_work() must follow on all ranks. Throws Config when the checkpoint is of another
// model, Corrupt when it is damaged.
TrainingState restore(parallel::Engine& engine, const ckpt::Reader& reader);

}  // namespace trireme::train
