// The user's own loop on many ranks: what Accelerate's Accelerator is to PyTorch, with its names.
//
//   Accelerator accelerator(context, {.mixed_precision = "bf16"});
//   auto [model, optimizer, loader] = accelerator.prepare(my_module, my_optimizer, my_loader);
//   for (auto& batch : loader) {
//     auto loss = torch::mse_loss(model->forward(batch.data), batch.target);
//     accelerator.backward(loss);
//     optimizer.step();
//     optimizer.zero_grad();
//   }
//
// Modules, optimizers, schedulers, datasets and samplers of LibTorch go in as they are. Where this
// differs from Accelerate on purpose, share/doc/coming-from-accelerate.md says so. Calls marked
// @collective are made by all ranks, or some wait for the others until the timeout names them.
#pragma once

#include "trireme/optim/loss_scaler.hpp"
#include "trireme/optim/metric_schedule.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/train/context.hpp"
#include "trireme/train/loader.hpp"
#include "trireme/train/tensors.hpp"
#include "trireme/train/trackers.hpp"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

struct ProjectConfiguration {
  std::filesystem::path project_dir = {};
  std::filesystem::path logging_dir = {};    // empty: project_dir
  bool automatic_checkpoint_naming = false;  // save_state() without a path, into
                                             // project_dir/checkpoints
  int total_limit = 0;                       // complete checkpoints to keep; 0: all
};

struct AcceleratorOptions {
  std::string mixed_precision = "no";  // no | bf16 | fp16
  std::int64_t gradient_accumulation_steps = 1;
  // Whether the end of a loader ends a group of accumulated micro-batches.
  bool sync_with_dataloader = true;
  // The most backward() calls of one model in one micro-batch; 0: two without accumulation, one
  // with.
  std::int64_t max_backward_calls = 0;
  std::string strategy = "ddp";  // ddp | zero1 | zero2 | zero3 | hsdp
  parallel::UnitOptions units = {};
  int shard_size = 0;  // hsdp: ranks that hold a model together; 0: those of a node
  bool reshard_after_forward = true;
  std::uint64_t seed = 42;  // of loaders and of every batch's random numbers
  DataLoaderConfiguration dataloader = {};
  ProjectConfiguration project = {};
  std::vector<std::string> log_with = {};     // jsonl, tensorboard
  optim::LossScalerOptions loss_scaler = {};  // fp16
};

struct BackwardOptions {
  // Over how many targets `loss` was summed; 0: it is a mean, and every micro-batch counts the same.
  std::int64_t num_targets = 0;
  bool retain_graph = false;
};

namespace train {

class AcceleratorCore;
struct ModelState;
struct OptimizerState;
struct SchedulerState;

// Tells the accelerator that a model is about to be used.
void touch(ModelState& model);

}  // namespace train

// A prepared model: use it like a pointer to the module. The first use in a micro-batch begins it.
template <class M>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<M> module, train::ModelState* state)
      : module_(std::move(module)), state_(state) {}
  M* operator->() const {
    train::touch(*state_);
    return module_.get();
  }
  M& operator*() const { return *operator->(); }
  // The module itself. Not for forward: where weights are sharded they are not there.
  const std::shared_ptr<M>& unwrap() const { return module_; }
  train::ModelState& state() const { return *state_; }

 private:
  std::shared_ptr<M> module_;
  train::ModelState* state_;
};

class PreparedOptimizer {
 public:
  explicit PreparedOptimizer(train::OptimizerState* state) : state_(state) {}
  // @collective. Updates, unless gradients are still being accumulated. Takes the gradients: there
  // is nothing left to add to. Throws Config when there was no backward() before.
  void step();
  // Forgets gradients of a step that is not taken; see accumulate().
  void zero_grad();
  // Whether the last step() did nothing because gradients were not finite (fp16).
  bool step_was_skipped() const;
  // Of the group at hand: the first, or that of an optimizer without groups.
  double learning_rate() const;
  std::int64_t num_updates() const;
  train::OptimizerState& state() const { return *state_; }

 private:
  train::OptimizerState* state_;
};

class PreparedScheduler {
 public:
  explicit PreparedScheduler(train::SchedulerState* state) : state_(state) {}
  // One tick for one optimizer step, whatever the number of ranks; none where the optimizer did not
  // step.
  void step();
  // For schedules that follow a metric.
  void step(double metric);
  std::vector<double> get_last_lr() const;

 private:
  train::SchedulerState* state_;
};

// Takes part in save_state() and load_state().
struct Checkpointable {
  std::function<std::string()> state_dict;
  std::function<void(const std::string&)> load_state_dict;
};

class Accelerator {
 public:
  // @collective. Throws Config, with all problems. `context` must outlive it.
  Accelerator(Context& context, AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // ---- preparing ----

  // @collective. Takes modules (shared_ptr or holder), torch::optim optimizers or
  // optim::OptimizerOptions, torch schedulers or optim::ScheduleOptions, and loaders, in any order
  // and number; returns what to use instead, in the same order. Optimizers and schedulers of torch
  // are borrowed. Models are placed when their optimizer is known, or at first use without one; all
  // ranks get rank 0's weights. Throws Config, with the list, for an optimizer that cannot be
  // sharded.
  template <class... Args>
  auto prepare(Args&&... args);
  // @collective. Makes a module without holding its weights: prepare() then places them unit by
  // unit.
  template <class M, class... Args>
  std::shared_ptr<M> build(Args&&... args) {
    std::shared_ptr<M> module;
    build_deferred([&]() -> std::shared_ptr<torch::nn::Module> {
      module = std::make_shared<M>(std::forward<Args>(args)...);
      return module;
    });
    return module;
  }

  // ---- the loop ----

  // Runs one micro-batch; optimizers step, and schedulers tick, only in the last of a group, whose
  // gradients are the mean over all micro-batches that it had.
  void accumulate(const std::function<void()>& micro_batch);
  template <class M>
  void accumulate(const PreparedModel<M>& /*model*/, const std::function<void()>& micro_batch) {
    accumulate(micro_batch);
  }
  // Runs a micro-batch that is not the last of its group.
  void no_sync(const std::function<void()>& micro_batch);
  // @collective for strategies that shard. Differentiates a single number. Called once in a
  // micro-batch, sums are the same to the bit on any number of ranks; of several calls, the order of
  // addition depends on it. Throws Config for one
  // that depends on no prepared model.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});
  // @collective. Bounds the norm of a model's gradients in the step to come, and returns it as it
  // was; nothing while gradients are still being accumulated.
  template <class M>
  std::optional<double> clip_grad_norm(const PreparedModel<M>& model, double max_norm) {
    return clip_norm({&model.state()}, max_norm);
  }
  // The same for module->parameters() of one or more models, whole.
  std::optional<double> clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm);
  // Bounds every element of a model's gradients in the step to come.
  template <class M>
  void clip_grad_value(const PreparedModel<M>& model, double clip_value) {
    clip_value_of(model.state(), clip_value);
  }
  // Runs forwards under mixed precision; prepared models are used so without it.
  void autocast(const std::function<void()>& forward, bool enabled = true);
  // Within, loaders with even_batches false give ranks that have no more data stand-ins that count
  // neither in gradients nor in metrics, so that all ranks make equally many steps.
  // `even_batches`: of the loaders, within.
  void join_uneven_inputs(const std::function<void()>& loop, bool even_batches = false);
  template <class Batch>
  Loader<Batch> skip_first_batches(Loader<Batch> loader, std::int64_t num_batches) {
    loader.skip(num_batches);
    return loader;
  }

  // ---- between ranks: tensors, alone or in anything of train/tensors.hpp ----

  // @collective. All ranks' tensors one after the other along dimension 0, single numbers as [1].
  // Shapes must agree in the other dimensions; throws Config otherwise.
  template <class T>
  T gather(T value) {
    train::for_each_tensor(value, [this](at::Tensor& x) { x = gather_tensor(x); });
    return value;
  }
  // The same; of the last batch of a loader, only what is not repeated.
  template <class T>
  T gather_for_metrics(T value) {
    train::for_each_tensor(value, [this](at::Tensor& x) { x = gather_fresh(x); });
    return value;
  }
  // @collective. All ranks' values one after the other, of any type that train/tensors.hpp knows.
  template <class T>
  std::vector<T> gather_object(const std::vector<T>& values) {
    std::vector<T> all;
    comm::ByteVector mine;
    train::pack(values, mine);
    for (const comm::ByteVector& bytes : all_gather(mine)) {
      std::span<const std::byte> from = bytes;
      std::vector<T> theirs;
      train::unpack(theirs, from);
      all.insert(all.end(), theirs.begin(), theirs.end());
    }
    return all;
  }
  // @collective. Element by element: "sum" or "mean", added in rank order; "none" leaves values
  // alone. Throws Config for another word or shapes that differ.
  template <class T>
  T reduce(T value, const std::string& reduction = "sum", double scale = 1) {
    train::for_each_tensor(value, [&](at::Tensor& x) { x = reduce_tensor(x, reduction, scale); });
    return value;
  }
  // @collective. Makes dimension `dim` as long as the longest of all ranks.
  template <class T>
  T pad_across_processes(T value, std::int64_t dim = 0, double pad_index = 0,
                         bool pad_first = false) {
    train::for_each_tensor(value,
                           [&](at::Tensor& x) { x = pad_tensor(x, dim, pad_index, pad_first); });
    return value;
  }
  // @collective. Every rank gets `from`'s value.
  template <class T>
  T broadcast(const T& value, int from = 0) {
    comm::ByteVector bytes;
    if (process_index() == from) train::pack(value, bytes);
    bytes = broadcast_bytes(std::move(bytes), from);
    std::span<const std::byte> rest = bytes;
    T result = value;
    train::unpack(result, rest);
    return result;
  }
  // Returns this rank's contiguous part; the first ranks have one more where it does not divide.
  // With `apply_padding` the last item fills the others up.
  template <class T>
  std::vector<T> split_between_processes(const std::vector<T>& all, bool apply_padding = false) {
    const auto [begin, end, most] = my_part(std::ssize(all));
    std::vector<T> mine(all.begin() + begin, all.begin() + end);
    while (apply_padding && !all.empty() && std::ssize(mine) < most) mine.push_back(all.back());
    return mine;
  }
  at::Tensor split_between_processes(const at::Tensor& all, bool apply_padding = false);

  // ---- who does what ----

  void wait_for_everyone();  // @collective
  // @collective. Rank 0 (of each node) first, then the others.
  void main_process_first(const std::function<void()>& action);
  void local_main_process_first(const std::function<void()>& action);
  void on_main_process(const std::function<void()>& action);
  void on_local_main_process(const std::function<void()>& action);
  void on_last_process(const std::function<void()>& action);
  void on_process(int rank, const std::function<void()>& action);
  void on_local_process(int local_rank, const std::function<void()>& action);
  void print(const std::string& text);  // rank 0, standard output
  // Any rank may set it; check_trigger() is true on all ranks then, once. @collective
  void set_trigger();
  bool check_trigger();

  // ---- state ----

  // @collective. Writes everything that decides how the loop goes on: weights, optimizers,
  // schedules, loss scale, positions of loaders, counters, registered objects. Durable when it
  // returns; a checkpoint of the same step is replaced. Returns its folder
  // (<path>/step-NNNNNNNN). Without a path: automatic naming.
  std::filesystem::path save_state(const std::filesystem::path& path = {});
  // @collective. A checkpoint's folder or one with checkpoints, of which the newest complete one is
  // taken; without a path that of automatic naming. Any number of ranks, any strategy. Loops over
  // loaders go on at the next batch. Throws Config where models or optimizers are others.
  void load_state(const std::filesystem::path& path = {});
  void register_for_checkpointing(const std::string& name, Checkpointable object);
  template <class T>
  requires requires(T& object, std::string text) {
    { object.state_dict() } -> std::convertible_to<std::string>;
    object.load_state_dict(text);
  }
  void register_for_checkpointing(const std::string& name, T& object) {
    register_for_checkpointing(
        name, Checkpointable{[&object] { return object.state_dict(); },
                             [&object](const std::string& text) { object.load_state_dict(text); }});
  }
  using StateHook = std::function<void(const std::filesystem::path& folder)>;
  void register_save_state_pre_hook(StateHook hook);
  void register_load_state_pre_hook(StateHook hook);
  // @collective. Writes model.safetensors, or shards of at most `max_shard_size` with an index.
  template <class M>
  std::vector<std::filesystem::path> save_model(const PreparedModel<M>& model,
                                                const std::filesystem::path& folder,
                                                Bytes max_shard_size = Bytes(5'000'000'000)) {
    return save_weights(model.state(), folder, max_shard_size);
  }
  // @collective. Rank 0 gets every parameter whole, in fp32, and every buffer; the others nothing.
  template <class M>
  std::map<std::string, at::Tensor> get_state_dict(const PreparedModel<M>& model) {
    return whole_state(model.state());
  }
  template <class M>
  std::shared_ptr<M> unwrap_model(const PreparedModel<M>& model) {
    return model.unwrap();
  }
  // Forgets all that was prepared; handles must not be used again. @collective
  void free_memory();
  void clear() { free_memory(); }

  // ---- logs ----

  // Starts the trackers of `log_with` under logging_dir/<project>, and those that were added.
  void init_trackers(const std::string& project,
                     const std::map<std::string, std::string>& config = {});
  void add_tracker(std::unique_ptr<Tracker> tracker);
  // Null on other ranks than 0, and for a name that there is not.
  Tracker* get_tracker(const std::string& name);
  void log(const LogValues& values, std::int64_t step);
  void end_training();
  // Writes a trace for chrome://tracing of what `action` does to <folder>/profile_<rank>.json.
  void profile(const std::filesystem::path& folder, const std::function<void()>& action);

  // ---- properties ----

  Context& context();
  const AcceleratorOptions& options() const;
  at::Device device() const { return at::kCPU; }
  std::string distributed_type() const;  // "NO", or the strategy
  int num_processes() const;
  int process_index() const;
  int local_process_index() const;
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() == num_processes() - 1; }
  bool use_distributed() const { return num_processes() > 1; }
  const std::string& mixed_precision() const { return options().mixed_precision; }
  bool sync_gradients() const;
  std::int64_t gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(std::int64_t steps);
  bool optimizer_step_was_skipped() const;
  std::filesystem::path project_dir() const { return options().project.project_dir; }
  std::filesystem::path logging_dir() const;
  std::int64_t completed_steps() const;  // optimizer steps, those skipped included
  std::int64_t save_iteration() const;   // checkpoints saved, over all jobs
  // Of the last step: the mean of the losses over all ranks, and the norm of the gradient before it
  // was clipped.
  double last_loss() const;
  double last_grad_norm() const;
  // Why numbers depend on the number of ranks; empty when they do not.
  std::string inexact() const;
  // Sets the seed of loaders, batches and torch; the same on all ranks.
  void set_seed(std::uint64_t seed);

 private:
  template <class M>
  PreparedModel<M> take(std::shared_ptr<M> module) {
    return {module, add_model(module)};
  }
  template <class M>
  auto take(const torch::nn::ModuleHolder<M>& holder) {
    return take(holder.ptr());
  }
  PreparedOptimizer take(torch::optim::Optimizer& optimizer) {
    return PreparedOptimizer(add_optimizer(optimizer));
  }
  PreparedOptimizer take(const optim::OptimizerOptions& options) {
    return PreparedOptimizer(add_optimizer(options));
  }
  PreparedScheduler take(torch::optim::LRScheduler& scheduler) {
    return PreparedScheduler(add_scheduler(scheduler));
  }
  PreparedScheduler take(const optim::ScheduleOptions& schedule) {
    return PreparedScheduler(add_scheduler(schedule));
  }
  PreparedScheduler take(const optim::MetricScheduleOptions& schedule) {
    return PreparedScheduler(add_scheduler(schedule));
  }
  template <class Batch>
  Loader<Batch> take(const Loader<Batch>& loader) {
    add_loader(loader.core());
    return loader;
  }
  template <class T>
  static constexpr int kTurn =
      std::is_base_of_v<torch::optim::Optimizer, T> || std::is_same_v<T, optim::OptimizerOptions>
          ? 1
      : std::is_base_of_v<torch::optim::LRScheduler, T> ||
              std::is_same_v<T, optim::ScheduleOptions> ||
              std::is_same_v<T, optim::MetricScheduleOptions>
          ? 2
          : 0;

  void build_deferred(const std::function<std::shared_ptr<torch::nn::Module>()>& construct);
  train::ModelState* add_model(std::shared_ptr<torch::nn::Module> module);
  train::OptimizerState* add_optimizer(torch::optim::Optimizer& optimizer);
  train::OptimizerState* add_optimizer(const optim::OptimizerOptions& options);
  train::SchedulerState* add_scheduler(torch::optim::LRScheduler& scheduler);
  train::SchedulerState* add_scheduler(const optim::ScheduleOptions& schedule);
  train::SchedulerState* add_scheduler(const optim::MetricScheduleOptions& schedule);
  void add_loader(std::shared_ptr<train::LoaderState> loader);
  std::optional<double> clip_norm(const std::vector<train::ModelState*>& models, double max_norm);
  void clip_value_of(train::ModelState& model, double clip_value);
  at::Tensor gather_tensor(const at::Tensor& x);
  at::Tensor gather_fresh(const at::Tensor& x);
  at::Tensor reduce_tensor(const at::Tensor& x, const std::string& reduction, double scale);
  at::Tensor pad_tensor(const at::Tensor& x, std::int64_t dim, double pad_index, bool pad_first);
  std::vector<comm::ByteVector> all_gather(const comm::ByteVector& mine);
  comm::ByteVector broadcast_bytes(comm::ByteVector bytes, int from);
  std::tuple<std::int64_t, std::int64_t, std::int64_t> my_part(std::int64_t size) const;
  std::vector<std::filesystem::path> save_weights(train::ModelState& model,
                                                  const std::filesystem::path& folder,
                                                  Bytes max_shard_size);
  std::map<std::string, at::Tensor> whole_state(train::ModelState& model);

  std::unique_ptr<train::AcceleratorCore> core_;
};

namespace train {

// What stands for a T while others are still being taken.
template <class T>
struct Taken {
  std::optional<T> value;
};

}  // namespace train

template <class... Args>
auto Accelerator::prepare(Args&&... args) {
  static_assert(((!std::is_base_of_v<torch::optim::Optimizer, std::remove_cvref_t<Args>> ||
                  std::is_lvalue_reference_v<Args>)&&...),
                "an optimizer is borrowed: keep it in a variable");
  using Results = std::tuple<train::Taken<decltype(take(args))>...>;
  Results results;
  // Models and loaders first, optimizers next, schedulers last.
  for (int turn = 0; turn < 3; ++turn) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (
          [&] {
            using T = std::remove_cvref_t<Args>;
            if (kTurn<T> == turn) std::get<I>(results).value.emplace(take(args));
          }(),
          ...);
    }
    (std::index_sequence_for<Args...>());
  }
  if constexpr (sizeof...(Args) == 1) {
    return std::move(*std::get<0>(results).value);
  } else {
    return std::apply([](auto&... taken) { return std::make_tuple(std::move(*taken.value)...); },
                      results);
  }
}

namespace train {

// Whether an exception says that memory ran out; it is lost otherwise.
bool is_out_of_memory(const std::exception& exception);

}  // namespace train

// @collective. Runs `attempt(batch_size)`, from `start` down by a tenth, until no rank runs out of
// memory; returns its size. Throws OutOfMemory when a batch of one does not fit.
std::int64_t find_executable_batch_size(Context& context,
                                        const std::function<void(std::int64_t)>& attempt,
                                        std::int64_t start = 128);

}  // namespace trireme
