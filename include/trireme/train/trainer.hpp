// Trains a language model as a configuration says: the main job, from files to checkpoints. The
// step reads on one screen in src/train/trainer.cpp.
#pragma once

#include "trireme/config/load.hpp"
#include "trireme/train/context.hpp"
#include "trireme/train/run_folder.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace trireme::train {

struct TrainOptions {
  Resume resume;
  bool dry_run = false;  // check everything, print the plan, train nothing, leave nothing behind
};

struct TrainResult {
  std::int64_t step = 0;
  std::optional<double> loss;  // of the last step; none when there was nothing left to do
  std::int64_t tokens = 0;
  double seconds = 0;  // in the training loop
  std::filesystem::path checkpoint;
  bool preempted = false;  // stopped early on request, checkpoint committed
};

// @collective. Throws Error; with `everywhere` set where all ranks throw the same.
TrainResult train(Context& context, const config::Loaded& loaded, const TrainOptions& options);

}  // namespace trireme::train
