// A whole training loop for any module and dataset: transformers' Trainer, on an Accelerator.
//
//   Trainer trainer(context, arguments, module, dataset, loss_of);
//   trainer.evaluate_on(other_dataset);
//   trainer.add_callback(std::make_shared<EarlyStopping>(3));
//   trainer.train();
//
// `loss_of(model, batch)` returns a mean over the batch, or a MicroBatchLoss: a sum and the number
// of targets, whose mean is then over all targets of a step.
#pragma once

#include "trireme/train/accelerator.hpp"
#include "trireme/train/training_arguments.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

// Where training stands. Stored in every checkpoint.
struct TrainerState {
  std::int64_t global_step = 0;
  std::int64_t max_steps = 0;
  double epoch = 0;  // with its part
  std::optional<double> best_metric = {};
  std::filesystem::path best_model_checkpoint = {};
  std::vector<LogValues> log_history = {};
};

// What callbacks ask for; any rank's wish is that of all.
struct TrainerControl {
  bool should_log = false;
  bool should_evaluate = false;
  bool should_save = false;
  bool should_epoch_stop = false;
  bool should_training_stop = false;
};

struct TrainerEvent {
  const TrainingArguments& arguments;
  TrainerState& state;
  TrainerControl& control;
};

class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;
  virtual void on_train_begin(TrainerEvent) {}
  virtual void on_train_end(TrainerEvent) {}
  virtual void on_epoch_begin(TrainerEvent) {}
  virtual void on_epoch_end(TrainerEvent) {}
  virtual void on_step_begin(TrainerEvent) {}
  virtual void on_substep_end(TrainerEvent) {}  // a micro-batch that is not the last of its step
  virtual void on_pre_optimizer_step(TrainerEvent) {}
  virtual void on_optimizer_step(TrainerEvent) {}
  virtual void on_step_end(TrainerEvent) {}
  virtual void on_log(TrainerEvent, LogValues& /*values*/) {}
  virtual void on_evaluate(TrainerEvent, const LogValues& /*metrics*/) {}
  virtual void on_save(TrainerEvent) {}
};

// Stops when the metric for the best model has not become better by more than `threshold` in so
// many evaluations in a row.
class EarlyStopping : public TrainerCallback {
 public:
  explicit EarlyStopping(int patience = 1, double threshold = 0)
      : patience_(patience), threshold_(threshold) {}
  void on_train_begin(TrainerEvent event) override;
  void on_evaluate(TrainerEvent event, const LogValues& metrics) override;

 private:
  int patience_;
  double threshold_;
  int without_ = 0;
  std::optional<double> best_;
};

struct TrainOutput {
  std::int64_t global_step = 0;
  double training_loss = 0;  // the mean over all steps of this call
  LogValues metrics;
};

namespace train {

// What does not depend on module and dataset.
class TrainerCore {
 public:
  TrainerCore(Context& context, TrainingArguments arguments);

  void set_length(std::optional<std::int64_t> batches_per_epoch);
  optim::OptimizerOptions optimizer() const;
  optim::ScheduleOptions schedule() const;
  void begin(PreparedOptimizer optimizer);
  void begin_micro_batch();
  void begin_update();
  void end_micro_batch(bool stepped, const LoaderState& loader);
  void end_epoch();
  // What is due after a step or an epoch; `evaluate` gives the metrics.
  void act(const std::function<LogValues()>& evaluate);
  TrainOutput finish();
  bool stops() const { return control.should_training_stop; }
  void tell(void (TrainerCallback::*what)(TrainerEvent));
  void note_evaluation(const LogValues& metrics);

  TrainingArguments arguments;
  Accelerator accelerator;
  TrainerState state;
  TrainerControl control;
  std::vector<std::shared_ptr<TrainerCallback>> callbacks;
  std::optional<PreparedOptimizer> optimizer_handle;
  std::int64_t updates_per_epoch = 0;

 private:
  void log(LogValues values);
  void log_window();
  void save();
  void agree();
  bool due(const std::string& strategy, double every, bool at_epoch_end) const;
  void consider_best(const LogValues& metrics);
  std::int64_t steps_of(double count) const;

  bool in_step_ = false;  // after its first micro-batch began
  double rate_ = 0;       // of the last update
  double window_loss_ = 0;
  std::int64_t window_steps_ = 0;
  double total_loss_ = 0;
  std::int64_t total_steps_ = 0;
  std::int64_t logged_step_ = -1;
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
  bool is_best_ = false;
  std::chrono::steady_clock::time_point began_;
};

// Of rows (sum, weight), added one after the other.
double mean_of(const at::Tensor& losses);

inline parallel::MicroBatchLoss as_loss(at::Tensor loss) { return {std::move(loss), 0}; }
inline parallel::MicroBatchLoss as_loss(parallel::MicroBatchLoss loss) { return loss; }

}  // namespace train

template <class M, class Dataset, class LossOf>
class Trainer {
 public:
  using Batch = typename decltype(make_loader(std::declval<Dataset>(), {}))::BatchType;
  // Metrics of all of an evaluation's outputs, gathered, each sample once.
  using Outputs = std::function<at::Tensor(PreparedModel<M>&, Batch&)>;
  using Metrics = std::function<LogValues(const at::Tensor& outputs)>;

  // @collective. Throws Config, with all problems.
  Trainer(Context& context, TrainingArguments arguments, std::shared_ptr<M> module, Dataset dataset,
          LossOf loss_of)
      : core_(context, std::move(arguments)),
        loss_of_(std::move(loss_of)),
        loader_(core_.accelerator.prepare(make_loader(
            std::move(dataset), loader_options(core_.arguments.per_device_train_batch_size)))) {
    core_.set_length(loader_.core()->num_steps());
    auto prepared = core_.accelerator.prepare(module, core_.optimizer(), core_.schedule());
    model_.emplace(std::get<0>(prepared));
    optimizer_.emplace(std::get<1>(prepared));
    schedule_.emplace(std::get<2>(prepared));
  }

  void evaluate_on(Dataset dataset) {
    LoaderOptions options = loader_options(core_.arguments.per_device_eval_batch_size);
    options.shuffle = false;
    options.drop_last = false;
    eval_loader_.emplace(core_.accelerator.prepare(make_loader(std::move(dataset), options)));
    eval_loader_->core()->deal_exactly();
  }
  void compute_metrics(Outputs outputs, Metrics metrics) {
    outputs_ = std::move(outputs);
    metrics_ = std::move(metrics);
  }
  void add_callback(std::shared_ptr<TrainerCallback> callback) {
    core_.callbacks.push_back(std::move(callback));
  }

  // @collective.
  TrainOutput train() {
    core_.begin(*optimizer_);
    const auto evaluation = [this] { return evaluate(); };
    if (core_.arguments.eval_on_start && core_.state.global_step == 0)
      core_.note_evaluation(evaluate());
    while (!core_.stops()) {
      core_.tell(&TrainerCallback::on_epoch_begin);
      core_.control.should_epoch_stop = false;
      (*model_).unwrap()->train();
      for (auto& batch : loader_) {
        if (!micro_batch(batch)) continue;
        core_.act(evaluation);
        if (core_.stops() || core_.control.should_epoch_stop) break;
      }
      core_.end_epoch();
      core_.act(evaluation);
    }
    return core_.finish();
  }

  // @collective. Returns eval_loss, and what compute_metrics gives, over the evaluation's dataset.
  LogValues evaluate() {
    if (!eval_loader_) {
      throw Error(ErrorKind::kConfig, "an evaluation without a dataset",
                  "call evaluate_on(), or set eval_strategy to no");
    }
    const at::NoGradGuard no_grad;
    const bool training = model_->unwrap()->is_training();
    model_->unwrap()->eval();
    std::vector<at::Tensor> losses;  // sum and weight of every batch, in the order of one rank
    std::vector<at::Tensor> outputs;
    for (auto& batch : *eval_loader_) {
      const parallel::MicroBatchLoss loss = train::as_loss(loss_of_(*model_, batch));
      const train::LoaderState& loader = *eval_loader_->core();
      const bool is_sum = loss.num_targets > 0;
      const auto weight = static_cast<double>(is_sum ? loss.num_targets : loader.num_samples());
      const double value = loss.loss.template item<double>() * (is_sum ? 1 : weight);
      const double counts = loader.counts() ? 1 : 0;
      losses.push_back(core_.accelerator.gather(
          torch::tensor({{value * counts, weight * counts}}, at::kDouble)));
      if (outputs_)
        outputs.push_back(core_.accelerator.gather_for_metrics(outputs_(*model_, batch)));
    }
    model_->unwrap()->train(training);
    if (losses.empty()) throw Error(ErrorKind::kConfig, "the evaluation's dataset is empty");
    LogValues metrics{{"eval_loss", train::mean_of(at::cat(losses))}};
    if (metrics_) {
      for (const auto& [name, value] : metrics_(at::cat(outputs)))
        metrics[name.starts_with("eval_") ? name : "eval_" + name] = value;
    }
    return metrics;
  }

  Accelerator& accelerator() { return core_.accelerator; }
  const TrainerState& state() const { return core_.state; }
  PreparedModel<M>& model() { return *model_; }

 private:
  LoaderOptions loader_options(std::int64_t batch_size) const {
    const TrainingArguments& arguments = core_.arguments;
    return {.batch_size = batch_size,
            .shuffle = train::TorchMap<Dataset> || train::UserMap<Dataset>,
            .drop_last = arguments.dataloader_drop_last,
            .num_workers = arguments.dataloader_num_workers,
            .prefetch_factor = arguments.dataloader_prefetch_factor};
  }

  // Returns whether it was the last of its step.
  bool micro_batch(Batch& batch) {
    Accelerator& accelerator = core_.accelerator;
    bool stepped = false;
    accelerator.accumulate([&] {
      core_.begin_micro_batch();
      const parallel::MicroBatchLoss loss = train::as_loss(loss_of_(*model_, batch));
      accelerator.backward(loss.loss, {.num_targets = loss.num_targets});
      stepped = accelerator.sync_gradients();
      if (!stepped) return;
      if (core_.arguments.max_grad_norm > 0)
        accelerator.clip_grad_norm(*model_, core_.arguments.max_grad_norm);
      core_.begin_update();
      optimizer_->step();
      core_.tell(&TrainerCallback::on_optimizer_step);
      schedule_->step();
    });
    core_.end_micro_batch(stepped, *loader_.core());
    return stepped;
  }

  train::TrainerCore core_;
  LossOf loss_of_;
  Loader<Batch> loader_;
  std::optional<Loader<Batch>> eval_loader_;
  std::optional<PreparedModel<M>> model_;
  std::optional<PreparedOptimizer> optimizer_;
  std::optional<PreparedScheduler> schedule_;
  Outputs outputs_;
  Metrics metrics_;
};

}  // namespace trireme
