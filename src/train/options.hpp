// From a configuration to the options of the rooms above. Private to the room.
#pragma once

#include "trireme/config/config.hpp"
#include "trireme/optim/loss_scaler.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/parallel/engine.hpp"

namespace trireme::train {

// "gpt2", or the plug-in's file.
std::string model_name(const config::Model& model);
at::ScalarType compute_type(const config::Config& config);
optim::ScheduleOptions schedule_options(const config::Config& config);
optim::LossScalerOptions scaler_options(const config::Precision& precision);
optim::OptimizerOptions optimizer_options(const config::Config& config);
// Without what the optimizer adds (Optimizer::configure).
parallel::EngineOptions engine_options(const config::Config& config);

}  // namespace trireme::train
