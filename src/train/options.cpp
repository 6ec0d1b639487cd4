#include "options.hpp"

#include <chrono>
#include <string>

namespace trireme::train {

std::string model_name(const config::Model& model) {
  return model.plugin.empty() ? model.type : model.plugin;
}

at::ScalarType compute_type(const config::Config& config) {
  if (config.precision.compute == "fp16") return at::kHalf;
  return config.precision.compute == "bf16" ? at::kBFloat16 : at::kFloat;
}

optim::ScheduleOptions schedule_options(const config::Config& config) {
  const config::Schedule& schedule = config.schedule;
  return {schedule.type,
          schedule.warmup_steps,
          schedule.total_steps > 0 ? schedule.total_steps : config.train.max_steps,
          schedule.min_lr_ratio,
          config.optimizer.lr,
          schedule.hold,
          schedule.options};
}

optim::LossScalerOptions scaler_options(const config::Precision& precision) {
  optim::LossScalerOptions options;
  options.rule = precision.hysteresis > 1 ? optim::ScaleRule::kDeepSpeed : optim::ScaleRule::kTorch;
  options.initial_scale = precision.initial_scale;
  options.growth_factor = precision.growth_factor;
  options.backoff_factor = precision.backoff_factor;
  options.growth_interval = precision.growth_interval;
  options.hysteresis = precision.hysteresis;
  options.consecutive_hysteresis = precision.consecutive_hysteresis;
  options.min_scale = precision.min_scale;
  if (precision.compute == "fp16" && precision.loss_scale == "dynamic") return options;
  options.rule = optim::ScaleRule::kFixed;
  options.initial_scale = precision.compute == "fp16" ? std::stod(precision.loss_scale) : 1;
  return options;
}

optim::OptimizerOptions optimizer_options(const config::Config& config) {
  const config::Optimizer& from = config.optimizer;
  optim::OptimizerOptions options;
  options.type = from.type;
  options.lr = from.lr;
  options.betas = {from.betas[0], from.betas[1]};
  options.eps = from.eps;
  options.weight_decay = from.weight_decay;
  options.decay_all = from.decay_all;
  options.maximize = from.maximize;
  options.amsgrad = from.amsgrad;
  options.momentum = from.momentum;
  options.dampening = from.dampening;
  options.nesterov = from.nesterov;
  options.lr_decay = from.lr_decay;
  options.initial_accumulator = from.initial_accumulator;
  options.adafactor = {from.adafactor_eps[0], from.adafactor_eps[1], from.clip_threshold,
                       from.decay_rate,       from.scale_parameter,  from.relative_step,
                       from.warmup_init};
  options.clip_norm = from.clip_norm;
  options.clip_value = from.clip_value;
  options.moments = config.precision.moments == "bf16" ? at::kBFloat16 : at::kFloat;
  options.seed = config.run.seed;
  for (const config::ParameterGroup& group : from.groups) {
    optim::GroupRule& rule = options.groups.emplace_back();
    rule.match = group.match;
    rule.lr_multiplier = group.lr_multiplier;
    if (!group.betas.empty()) rule.betas = {group.betas[0], group.betas[1]};
    rule.eps = group.eps;
    rule.weight_decay = group.weight_decay;
    rule.clip_norm = group.clip_norm;
  }
  return options;
}

parallel::EngineOptions engine_options(const config::Config& config) {
  parallel::EngineOptions options;
  options.strategy = config.parallel.strategy;
  options.units = {config.parallel.units, config.parallel.ignored, config.precision.keep_fp32,
                   config.model.frozen};
  options.compute = compute_type(config);
  options.num_micro_batches = config.train.global_batch_size / config.train.micro_batch_size;
  options.reduce = config.precision.reduce == "bf16" ? at::kBFloat16 : at::kFloat;
  options.shard_size = static_cast<int>(config.parallel.shard_size);
  options.reshard_after_forward = config.parallel.reshard_after_forward;
  options.work_on_disk = config.offload.work == "nvme";
  options.grad_on_disk = config.offload.grad == "nvme";
  options.state_on_disk = config.offload.optimizer == "nvme";
  options.disk.folder = config.offload.nvme_path;
  options.disk.timeout = std::chrono::duration<double>(config.run.timeout);
  if (config.run.device == "cuda") options.compute_on = parallel::ComputeOn::kGpu;
  return options;
}

}  // namespace trireme::train
