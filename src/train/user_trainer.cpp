#include "trireme/train/user_trainer.hpp"

#include "trireme/base/error.hpp"
#include "trireme/ckpt/tools.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace trireme {

namespace {

using nlohmann::json;

// The metric that decides which model is the best, by the name that evaluations give it.
std::string best_name(const TrainingArguments& arguments) {
  const std::string name =
      arguments.metric_for_best_model.empty() ? "loss" : arguments.metric_for_best_model;
  return name.starts_with("eval_") ? name : "eval_" + name;
}

bool is_better(const TrainingArguments& arguments, double value, double than, double by = 0) {
  const bool greater =
      arguments.greater_is_better.value_or(!best_name(arguments).ends_with("loss"));
  return greater ? value > than + by : value < than - by;
}

double metric_of(const TrainingArguments& arguments, const LogValues& metrics) {
  const auto found = metrics.find(best_name(arguments));
  if (found != metrics.end()) return found->second;
  Error error(ErrorKind::kConfig,
              fmt::format("metric_for_best_model: an evaluation gives no {}", best_name(arguments)),
              "let compute_metrics return it");
  error.everywhere = true;
  throw error;
}

AcceleratorOptions options_of(const TrainingArguments& arguments) {
  check(arguments);
  AcceleratorOptions options;
  options.mixed_precision = arguments.bf16 ? "bf16" : arguments.fp16 ? "fp16" : "no";
  options.gradient_accumulation_steps = arguments.gradient_accumulation_steps;
  options.strategy = arguments.strategy;
  options.seed = arguments.seed;
  options.dataloader.data_seed = arguments.data_seed;
  options.project.project_dir = arguments.output_dir;
  options.project.automatic_checkpoint_naming = true;
  options.log_with = arguments.report_to;
  return options;
}

std::string to_text(const TrainerState& state) {
  json all{{"global_step", state.global_step},
           {"epoch", state.epoch},
           {"best_model_checkpoint", state.best_model_checkpoint.string()},
           {"log_history", state.log_history}};
  if (state.best_metric) all["best_metric"] = *state.best_metric;
  return all.dump();
}

void from_text(const std::string& text, TrainerState& state) {
  const json all = json::parse(text);
  state.global_step = all["global_step"];
  state.epoch = all["epoch"];
  state.best_model_checkpoint = all["best_model_checkpoint"].get<std::string>();
  state.log_history.clear();
  for (const json& line : all["log_history"]) {
    LogValues& values = state.log_history.emplace_back();
    // What is not finite was written as null.
    for (const auto& [key, value] : line.items())
      values[key] = value.is_null() ? std::nan("") : value.get<double>();
  }
  state.best_metric.reset();
  if (all.contains("best_metric")) state.best_metric = all["best_metric"].get<double>();
}

}  // namespace

void EarlyStopping::on_train_begin(TrainerEvent event) {
  if (event.arguments.eval_strategy == "no")
    throw Error(ErrorKind::kConfig, "early stopping needs an eval_strategy", "set steps or epoch");
  best_ = event.state.best_metric;
  without_ = 0;
}

void EarlyStopping::on_evaluate(TrainerEvent event, const LogValues& metrics) {
  const double value = metric_of(event.arguments, metrics);
  if (!best_ || is_better(event.arguments, value, *best_, threshold_)) {
    best_ = value;
    without_ = 0;
  } else if (++without_ >= patience_) {
    event.control.should_training_stop = true;
  }
}

namespace train {

TrainerCore::TrainerCore(Context& context, TrainingArguments given)
    : arguments(std::move(given)), accelerator(context, options_of(arguments)) {
  accelerator.register_for_checkpointing(
      "trainer", Checkpointable{[this] { return to_text(state); },
                                [this](const std::string& text) { from_text(text, state); }});
}

void TrainerCore::set_length(std::optional<std::int64_t> batches) {
  const std::int64_t group = arguments.gradient_accumulation_steps;
  if (batches) updates_per_epoch = std::max<std::int64_t>(1, (*batches + group - 1) / group);
  if (arguments.max_steps > 0) {
    state.max_steps = arguments.max_steps;
  } else if (batches) {
    state.max_steps = static_cast<std::int64_t>(
        std::ceil(arguments.num_train_epochs * static_cast<double>(updates_per_epoch)));
  } else {
    throw Error(ErrorKind::kConfig, "a stream has no length: epochs cannot be counted",
                "set max_steps");
  }
}

std::int64_t TrainerCore::steps_of(double count) const {
  const double steps = count < 1 ? std::ceil(count * static_cast<double>(state.max_steps)) : count;
  return static_cast<std::int64_t>(steps);
}

optim::OptimizerOptions TrainerCore::optimizer() const {
  optim::OptimizerOptions options;
  options.type = arguments.optim.starts_with("adamw") ? "adamw" : arguments.optim;
  options.lr = arguments.learning_rate;
  options.betas = {arguments.adam_beta1, arguments.adam_beta2};
  options.eps = arguments.adam_epsilon;
  options.weight_decay = arguments.weight_decay;
  options.seed = arguments.seed;
  // transformers' Trainer gives Adafactor the schedule's rate.
  options.adafactor.scale_parameter = false;
  options.adafactor.relative_step = false;
  return options;
}

optim::ScheduleOptions TrainerCore::schedule() const {
  optim::ScheduleOptions options;
  options.type = arguments.lr_scheduler_type;
  options.warmup_steps = steps_of(arguments.warmup_steps);
  options.total_steps = state.max_steps;
  options.base_lr = arguments.learning_rate;
  options.options = arguments.lr_scheduler_kwargs;
  return options;
}

void TrainerCore::tell(void (TrainerCallback::*what)(TrainerEvent)) {
  for (const auto& callback : callbacks) ((*callback).*what)({arguments, state, control});
}

void TrainerCore::begin(PreparedOptimizer optimizer) {
  optimizer_handle.emplace(optimizer);
  if (arguments.resume_from_checkpoint == "true") {
    if (!ckpt::list(arguments.output_dir / "checkpoints").empty()) accelerator.load_state();
  } else if (!arguments.resume_from_checkpoint.empty()) {
    accelerator.load_state(arguments.resume_from_checkpoint);
  }
  accelerator.init_trackers(arguments.run_name);
  began_ = std::chrono::steady_clock::now();
  control = {};
  control.should_training_stop = state.global_step >= state.max_steps;
  tell(&TrainerCallback::on_train_begin);
}

bool TrainerCore::due(const std::string& strategy, double every, bool at_epoch_end) const {
  if (strategy == "epoch") return at_epoch_end;
  if (strategy != "steps" || at_epoch_end) return false;
  return state.global_step % std::max<std::int64_t>(1, steps_of(every)) == 0;
}

double mean_of(const at::Tensor& losses) {
  double sum = 0;
  double weight = 0;
  for (std::int64_t i = 0; i < losses.size(0); ++i) {
    sum += losses[i][0].item<double>();
    weight += losses[i][1].item<double>();
  }
  return sum / weight;
}

void TrainerCore::begin_micro_batch() {
  if (!std::exchange(in_step_, true)) tell(&TrainerCallback::on_step_begin);
}

void TrainerCore::begin_update() {
  rate_ = optimizer_handle->learning_rate();
  tell(&TrainerCallback::on_pre_optimizer_step);
}

void TrainerCore::end_micro_batch(bool stepped, const LoaderState& loader) {
  if (!stepped) return tell(&TrainerCallback::on_substep_end);
  in_step_ = false;
  ++state.global_step;
  window_loss_ += accelerator.last_loss();
  ++window_steps_;
  total_loss_ += accelerator.last_loss();
  ++total_steps_;
  if (updates_per_epoch > 0) {
    const std::int64_t group = arguments.gradient_accumulation_steps;
    const std::int64_t of_epoch = (loader.step() + group - 1) / group;
    state.epoch = static_cast<double>(loader.epoch()) +
                  static_cast<double>(of_epoch) / static_cast<double>(updates_per_epoch);
  }
  const double eval_every =
      arguments.eval_steps > 0 ? arguments.eval_steps : arguments.logging_steps;
  const bool first = state.global_step == 1 && arguments.logging_first_step;
  control.should_log =
      first || due(arguments.logging_strategy, arguments.logging_steps, /*at_epoch_end=*/false);
  control.should_evaluate = due(arguments.eval_strategy, eval_every, /*at_epoch_end=*/false) &&
                            static_cast<double>(state.global_step) >= arguments.eval_delay;
  control.should_save = due(arguments.save_strategy, arguments.save_steps, /*at_epoch_end=*/false);
  if (state.global_step >= state.max_steps) {
    control.should_training_stop = true;
    if (arguments.save_strategy == "steps") control.should_save = true;
  }
  tell(&TrainerCallback::on_step_end);
}

void TrainerCore::end_epoch() {
  control.should_log = due(arguments.logging_strategy, 1, /*at_epoch_end=*/true);
  control.should_evaluate =
      due(arguments.eval_strategy, 1, /*at_epoch_end=*/true) && state.epoch >= arguments.eval_delay;
  control.should_save = due(arguments.save_strategy, 1, /*at_epoch_end=*/true);
  tell(&TrainerCallback::on_epoch_end);
}

// A wish of one rank must not leave the others behind in a collective.
void TrainerCore::agree() {
  std::array<bool*, 5> flags{&control.should_log, &control.should_evaluate, &control.should_save,
                             &control.should_epoch_stop, &control.should_training_stop};
  std::array<bool, 5> mine{};
  for (std::size_t f = 0; f < flags.size(); ++f) mine[f] = *flags[f];
  for (const auto& theirs :
       comm::all_gather_values(accelerator.context().world(), mine, "wishes of callbacks")) {
    for (std::size_t f = 0; f < flags.size(); ++f) *flags[f] = *flags[f] || theirs[f];
  }
}

void TrainerCore::act(const std::function<LogValues()>& evaluate) {
  agree();
  if (control.should_log && logged_step_ != state.global_step) log_window();
  if (control.should_evaluate && evaluated_step_ != state.global_step) note_evaluation(evaluate());
  if (control.should_save && saved_step_ != state.global_step) save();
  control.should_log = control.should_evaluate = control.should_save = false;
}

void TrainerCore::log_window() {
  if (window_steps_ == 0) return;
  LogValues values{{"loss", window_loss_ / static_cast<double>(window_steps_)},
                   {"grad_norm", accelerator.last_grad_norm()},
                   {"learning_rate", rate_},
                   {"epoch", state.epoch}};
  window_loss_ = 0;
  window_steps_ = 0;
  logged_step_ = state.global_step;
  log(std::move(values));
}

void TrainerCore::log(LogValues values) {
  for (const auto& callback : callbacks) callback->on_log({arguments, state, control}, values);
  accelerator.log(values, state.global_step);
  values["step"] = static_cast<double>(state.global_step);
  std::string line = fmt::format("step {}/{}", state.global_step, state.max_steps);
  for (const auto& [key, value] : values) {
    if (key != "step") line += fmt::format("  {} {:.5g}", key, value);
  }
  accelerator.context().log().info(line);
  state.log_history.push_back(std::move(values));
}

void TrainerCore::note_evaluation(const LogValues& metrics) {
  evaluated_step_ = state.global_step;
  LogValues values = metrics;
  values["epoch"] = state.epoch;
  log(values);
  for (const auto& callback : callbacks)
    callback->on_evaluate({arguments, state, control}, metrics);
  if (arguments.load_best_model_at_end || arguments.save_strategy == "best" ||
      !arguments.metric_for_best_model.empty())
    consider_best(metrics);
  agree();  // an evaluation may have stopped training, or asked for more
}

void TrainerCore::consider_best(const LogValues& metrics) {
  const double value = metric_of(arguments, metrics);
  is_best_ = !state.best_metric || is_better(arguments, value, *state.best_metric);
  if (!is_best_) return;
  state.best_metric = value;
  if (arguments.save_strategy == "best") control.should_save = true;
}

// The best checkpoint is kept beside the newest, and its name is inside of what is saved.
void TrainerCore::save() {
  const auto folder = arguments.output_dir / "checkpoints";
  if (std::exchange(is_best_, false)) {
    state.best_model_checkpoint = folder / fmt::format("step-{:08}", accelerator.completed_steps());
  }
  accelerator.save_state();
  saved_step_ = state.global_step;
  if (arguments.save_total_limit > 0) {
    accelerator.context().world().agree("remove old checkpoints", [&] {
      if (!accelerator.is_main_process()) return;
      ckpt::KeepRules rules;
      rules.last = arguments.save_total_limit;
      const std::string best = state.best_model_checkpoint.filename().string();
      if (!best.empty()) rules.steps.emplace_back(std::stoll(best.substr(best.find('-') + 1)));
      ckpt::carry_out(ckpt::plan_pruning(folder, rules));
    });
  }
  tell(&TrainerCallback::on_save);
}

TrainOutput TrainerCore::finish() {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  const double steps = static_cast<double>(std::max<std::int64_t>(1, total_steps_));
  TrainOutput output{state.global_step, total_loss_ / steps, {}};
  if (arguments.load_best_model_at_end && !state.best_model_checkpoint.empty()) {
    const TrainerState now = state;
    accelerator.context().log().info(
        fmt::format("loading the best model from {}", state.best_model_checkpoint.string()));
    accelerator.load_state(state.best_model_checkpoint);
    state = now;
  }
  output.metrics = {{"train_runtime", seconds},
                    {"train_steps_per_second", static_cast<double>(total_steps_) / seconds},
                    {"train_loss", output.training_loss},
                    {"epoch", state.epoch}};
  log(output.metrics);
  tell(&TrainerCallback::on_train_end);
  accelerator.end_training();
  return output;
}

}  // namespace train

}  // namespace trireme
