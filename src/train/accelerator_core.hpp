// What the Accelerator's sources share: its models, optimizers, schedules and loaders, and where the
// loop stands. Private to the room.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/train/accelerator.hpp"

#include "torch_optimizers.hpp"

#include <deque>
#include <map>
#include <set>
#include <unordered_map>

namespace trireme::train {

// A model's engine is made once its optimizer is known, since that says what state it keeps.
struct ModelState {
  ModelState(AcceleratorCore& of, std::shared_ptr<torch::nn::Module> given, std::size_t number)
      : core(of), module(std::move(given)), place(number) {}

  AcceleratorCore& core;
  std::shared_ptr<torch::nn::Module> module;
  std::size_t place;  // among the models
  OptimizerState* owner = nullptr;
  std::optional<optim::Optimizer> optimizer;
  std::vector<std::size_t> group_of;  // TranslatedOptimizer::group_of
  std::optional<parallel::Engine> engine;

  // Where its step stands.
  bool begun = false;  // micro-batches of a step are there, or at hand
  bool open = false;   // a micro-batch is at hand
  bool evaluating = false;
  std::int64_t turns = 0;                  // micro-batches that are complete
  std::int64_t group = 0;                  // of accumulation, that the step belongs to
  std::int64_t counted = -1;               // the micro-batch of the loop that was counted last
  std::optional<parallel::StepSums> sums;  // the step is over, to be taken
  double clip = 1;
  std::optional<double> clip_value;
};

struct OptimizerState {
  explicit OptimizerState(AcceleratorCore& of) : core(of) {}

  AcceleratorCore& core;
  torch::optim::Optimizer* torch = nullptr;  // or else `options`
  optim::OptimizerOptions options;
  std::string fingerprint;
  std::function<double(double)> rate = {};  // of a schedule
  std::vector<ModelState*> models;
  std::int64_t updates = 0;
  std::int64_t skips_in_a_row = 0;
  bool skipped = false;
};

struct SchedulerState {
  explicit SchedulerState(AcceleratorCore& of) : core(of) {}

  AcceleratorCore& core;
  OptimizerState* optimizer = nullptr;  // null: torch's, whose is not to be seen
  torch::optim::LRScheduler* torch = nullptr;
  std::optional<optim::Schedule> schedule;
  std::optional<optim::MetricSchedule> metric;
  std::vector<double> bases;  // of the torch optimizer's groups
  std::int64_t ticks = 0;

  void apply();
};

// Shows operators to every engine that must see them.
class Observers : public parallel::OperatorObserver {
 public:
  void add(parallel::OperatorObserver* observer);
  void clear();
  bool on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;

 private:
  std::vector<parallel::OperatorObserver*> all_;
  std::optional<parallel::ObserveOperators> observing_;
};

class AcceleratorCore {
 public:
  AcceleratorCore(Context& context, AcceleratorOptions options);

  comm::Communicator& world() { return context.world(); }
  int rank() const { return static_cast<int>(context.world().rank().value); }
  int num_ranks() const { return context.world().size(); }

  // accelerator_step.cpp
  void touch(ModelState& model);
  void backward(const at::Tensor& loss, const BackwardOptions& options);
  const parallel::StepSums& finish(ModelState& model);
  void discard(ModelState& model);
  void step(OptimizerState& optimizer);
  void zero_grad(OptimizerState& optimizer);
  void begin_micro_batch(std::optional<bool> sync);
  void end_micro_batch();
  std::int64_t turns_foreseen() const;
  double mean_scale(const parallel::StepSums& sums) const;
  void set_autocast(bool enabled);

  // accelerator.cpp
  void build(ModelState& model);
  void give_weights_of_root(torch::nn::Module& module);
  ModelState* model_of(const at::Tensor& parameter);
  LoaderState* active_loader() { return active.empty() ? nullptr : active.back(); }
  void on_batch(LoaderState& loader);

  // accelerator_state.cpp
  std::string state() const;
  void restore_state(const std::string& text);

  Context& context;
  AcceleratorOptions options;
  at::ScalarType compute;
  optim::LossScaler scaler;
  std::deque<ModelState> models;
  std::deque<OptimizerState> optimizers;
  std::deque<SchedulerState> schedulers;
  std::vector<std::shared_ptr<LoaderState>> loaders;
  std::vector<LoaderState*> active;  // loops at hand, the innermost last
  std::unordered_map<const c10::TensorImpl*, std::pair<ModelState*, std::string>> parameters;
  std::map<const torch::nn::Module*, std::unique_ptr<parallel::DeferredModule>> deferred;
  Observers observers;

  // Where the loop stands.
  std::int64_t micro_step = 0;   // of a group of accumulation
  std::int64_t micro_batch = 0;  // of the loop, counted from the start
  std::int64_t group = 0;
  bool in_accumulate = false;
  bool sync = true;
  bool trigger = false;
  std::int64_t completed_steps = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t saves = 0;
  double last_loss = 0;
  double last_norm = 0;
  bool unused_noted = false;

  std::vector<std::pair<std::string, Checkpointable>> objects;
  std::vector<Accelerator::StateHook> save_hooks;
  std::vector<Accelerator::StateHook> load_hooks;
  std::vector<std::unique_ptr<Tracker>> trackers;
  ckpt::Saver saver;
};

}  // namespace trireme::train
