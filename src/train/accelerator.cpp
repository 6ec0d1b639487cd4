#include "trireme/train/accelerator.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include "accelerator_core.hpp"
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

namespace trireme {

namespace train {

namespace {

const std::vector<std::string> kPrecisions{"no", "bf16", "fp16"};

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
  Error error(ErrorKind::kConfig, message, hint);
  error.everywhere = true;
  throw error;
}

at::ScalarType compute_of(const AcceleratorOptions& options) {
  const auto found = std::ranges::find(kPrecisions, options.mixed_precision);
  if (found == kPrecisions.end()) {
    const auto near = nearest(options.mixed_precision, kPrecisions);
    refuse(fmt::format("mixed_precision '{}'", options.mixed_precision),
           near ? fmt::format("did you mean '{}'?", *near)
                : fmt::format("there are {}", fmt::join(kPrecisions, ", ")));
  }
  return options.mixed_precision == "no"     ? at::kFloat
         : options.mixed_precision == "bf16" ? at::kBFloat16
                                             : at::kHalf;
}

optim::LossScalerOptions scaler_of(const AcceleratorOptions& options) {
  if (options.mixed_precision == "fp16") return options.loss_scaler;
  return {.rule = optim::ScaleRule::kFixed, .initial_scale = 1};
}

void check(const AcceleratorOptions& options) {
  if (options.gradient_accumulation_steps < 1)
    refuse("gradient_accumulation_steps is below 1", "1 steps after every batch");
  if (options.max_backward_calls < 0) refuse("max_backward_calls is below 0", "0 is the default");
  parallel::strategy(options.strategy);
  const ProjectConfiguration& project = options.project;
  if (project.automatic_checkpoint_naming && project.project_dir.empty())
    refuse("automatic_checkpoint_naming without a project_dir", "set project.project_dir");
}

std::size_t digest(const torch::nn::Module& module) {
  std::size_t all = 0;
  const auto add = [&all](const at::Tensor& tensor) {
    const at::Tensor dense = tensor.detach().contiguous();
    const std::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
    all = static_cast<std::size_t>(mix(all, std::hash<std::string_view>{}(bytes)));
  };
  for (const at::Tensor& tensor : module.parameters()) add(tensor);
  for (const at::Tensor& tensor : module.buffers()) add(tensor);
  return all;
}

}  // namespace

AcceleratorCore::AcceleratorCore(Context& given, AcceleratorOptions given_options)
    : context(given),
      options((check(given_options), std::move(given_options))),
      compute(compute_of(options)),
      scaler(scaler_of(options)) {
  if (compute != at::kFloat) at::autocast::set_autocast_dtype(at::kCPU, compute);
}

// Ranks may have drawn their weights from different seeds: all get rank 0's.
void AcceleratorCore::give_weights_of_root(torch::nn::Module& module) {
  const auto digests = comm::all_gather_values(world(), digest(module), "compare weights");
  if (std::ranges::all_of(digests, [&](std::size_t d) { return d == digests[0]; })) return;
  const at::NoGradGuard no_grad;
  const auto give = [this](at::Tensor tensor) {
    comm::ByteVector bytes;
    if (rank() == 0) pack(tensor, bytes);
    bytes = world().broadcast(std::move(bytes), "weights of rank 0");
    std::span<const std::byte> from = bytes;
    at::Tensor theirs;
    unpack(theirs, from);
    tensor.copy_(theirs);
  };
  for (const at::Tensor& tensor : module.parameters()) give(tensor);
  for (const at::Tensor& tensor : module.buffers()) give(tensor);
}

void AcceleratorCore::build(ModelState& model) {
  parallel::EngineOptions engine;
  engine.strategy = options.strategy;
  engine.units = options.units;
  engine.shard_size = options.shard_size;
  engine.reshard_after_forward = options.reshard_after_forward;
  engine.compute = compute;
  engine.dealt = true;
  engine.num_micro_batches = turns_foreseen() * num_ranks();
  engine.num_moments = 0;
  if (model.optimizer) {
    model.optimizer->configure(engine);
  } else {
    engine.units.frozen = {".*"};  // nobody updates it
  }
  const auto found = deferred.find(model.module.get());
  parallel::EagerValues eager;
  if (found == deferred.end()) give_weights_of_root(*model.module);
  parallel::InitialValues& initial =
      found == deferred.end() ? static_cast<parallel::InitialValues&>(eager) : *found->second;
  try {
    model.engine.emplace(context.session(), *model.module, initial, engine);
  } catch (Error& error) {
    if (error.kind == ErrorKind::kConfig) error.everywhere = true;
    throw;
  }
  if (model.optimizer) model.optimizer->attach(*model.engine, world());
  observers.add(model.engine->observer());
}

ModelState* AcceleratorCore::model_of(const at::Tensor& parameter) {
  const auto found = parameters.find(parameter.unsafeGetTensorImpl());
  return found == parameters.end() ? nullptr : found->second.first;
}

void Observers::add(parallel::OperatorObserver* observer) {
  if (observer == nullptr) return;
  all_.push_back(observer);
  if (!observing_) observing_.emplace(*this);
}

void Observers::clear() {
  observing_.reset();
  all_.clear();
}

bool Observers::on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  for (parallel::OperatorObserver* observer : all_) {
    if (observer->on_operator(op, stack)) return true;
  }
  return false;
}

void SchedulerState::apply() {
  if (torch != nullptr) return;
  if (optimizer->torch == nullptr) {
    if (metric) {
      optimizer->rate = [this](double base) { return metric->rate(base); };
    } else {
      optimizer->rate = [this, at = ticks](double base) { return schedule->rate(base, at); };
    }
    return;
  }
  auto& groups = optimizer->torch->param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    groups[g].options().set_lr(metric ? metric->rates()[g] : schedule->rate(bases[g], ticks));
}

bool is_out_of_memory(const std::exception& exception) {
  if (const auto* ours = dynamic_cast<const Error*>(&exception))
    return ours->kind == ErrorKind::kOutOfMemory;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&exception) != nullptr) return true;
  const std::string_view text = exception.what();
  return dynamic_cast<const c10::Error*>(&exception) != nullptr &&
         (text.find("out of memory") != std::string_view::npos ||
          text.find("not enough memory") != std::string_view::npos ||
          text.find("can't allocate memory") != std::string_view::npos);
}

}  // namespace train

using train::ModelState;
using train::OptimizerState;
using train::SchedulerState;

Accelerator::Accelerator(Context& context, AcceleratorOptions options)
    : core_(std::make_unique<train::AcceleratorCore>(context, std::move(options))) {}
Accelerator::~Accelerator() = default;

// ---- preparing ----

void Accelerator::build_deferred(
    const std::function<std::shared_ptr<torch::nn::Module>()>& construct) {
  auto deferred = std::make_unique<parallel::DeferredModule>(core_->options.seed, construct);
  const torch::nn::Module* const module = deferred->module().get();
  core_->deferred[module] = std::move(deferred);
}

ModelState* Accelerator::add_model(std::shared_ptr<torch::nn::Module> module) {
  for (ModelState& known : core_->models) {
    if (known.module == module) return &known;
  }
  ModelState& model = core_->models.emplace_back(*core_, std::move(module), core_->models.size());
  for (const auto& item : model.module->named_parameters())
    core_->parameters.try_emplace(item.value().unsafeGetTensorImpl(), &model, item.key());
  return &model;
}

namespace {

// Takes a model for an optimizer and places it.
void claim(OptimizerState& optimizer, ModelState& model, const optim::OptimizerOptions& options) {
  train::AcceleratorCore& core = optimizer.core;
  if (model.owner != nullptr) {
    train::refuse(fmt::format("model {} has an optimizer already", model.place),
                  "use one optimizer a model; its groups may differ");
  }
  if (model.engine) {
    train::refuse(fmt::format("model {} was used before its optimizer was prepared", model.place),
                  "prepare both first");
  }
  model.owner = &optimizer;
  model.optimizer.emplace(options);
  optimizer.models.push_back(&model);
  core.build(model);
}

}  // namespace

OptimizerState* Accelerator::add_optimizer(torch::optim::Optimizer& torch) {
  for (OptimizerState& known : core_->optimizers) {
    if (known.torch == &torch) return &known;
  }
  std::vector<ModelState*> models;
  for (const auto& group : torch.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      ModelState* const model = core_->model_of(parameter);
      if (model == nullptr) {
        train::refuse("the optimizer has a parameter that is in no prepared model",
                      "prepare the model too, at the same time or before");
      }
      if (std::ranges::find(models, model) == models.end()) models.push_back(model);
    }
  }
  OptimizerState& optimizer = core_->optimizers.emplace_back(*core_);
  optimizer.torch = &torch;
  optimizer.fingerprint = train::fingerprint(torch);
  for (ModelState* model : models) {
    const auto name_of = [&](const at::Tensor& parameter) -> std::optional<std::string> {
      const auto& [owner, name] = core_->parameters.at(parameter.unsafeGetTensorImpl());
      return owner == model ? std::optional(name) : std::nullopt;
    };
    train::TranslatedOptimizer translated = train::translate(torch, name_of);
    translated.options.seed = core_->options.seed;
    model->group_of = std::move(translated.group_of);
    claim(optimizer, *model, translated.options);
  }
  return &optimizer;
}

OptimizerState* Accelerator::add_optimizer(const optim::OptimizerOptions& options) {
  std::vector<ModelState*> free;
  for (ModelState& model : core_->models) {
    if (model.owner == nullptr && !model.engine) free.push_back(&model);
  }
  if (free.size() != 1) {
    train::refuse(fmt::format("optim::OptimizerOptions are for one model, and {} have no optimizer",
                              free.size()),
                  "prepare each model together with its optimizer");
  }
  OptimizerState& optimizer = core_->optimizers.emplace_back(*core_);
  optimizer.options = options;
  claim(optimizer, *free[0], options);
  return &optimizer;
}

SchedulerState* Accelerator::add_scheduler(torch::optim::LRScheduler& scheduler) {
  for (SchedulerState& known : core_->schedulers) {
    if (known.torch == &scheduler) return &known;
  }
  SchedulerState& state = core_->schedulers.emplace_back(*core_);
  state.torch = &scheduler;
  return &state;
}

namespace {

SchedulerState& bound_scheduler(train::AcceleratorCore& core) {
  std::vector<OptimizerState*> free;
  for (OptimizerState& optimizer : core.optimizers) {
    const auto has = [&](const SchedulerState& s) { return s.optimizer == &optimizer; };
    if (std::ranges::none_of(core.schedulers, has)) free.push_back(&optimizer);
  }
  if (free.size() != 1) {
    train::refuse(fmt::format("a schedule is for one optimizer, and {} have none", free.size()),
                  "prepare each optimizer together with its schedule");
  }
  SchedulerState& state = core.schedulers.emplace_back(core);
  state.optimizer = free[0];
  if (free[0]->torch == nullptr) {
    state.bases = free[0]->models[0]->optimizer->base_rates();
  } else {
    for (const auto& group : free[0]->torch->param_groups())
      state.bases.push_back(group.options().get_lr());
  }
  return state;
}

}  // namespace

SchedulerState* Accelerator::add_scheduler(const optim::ScheduleOptions& given) {
  SchedulerState& state = bound_scheduler(*core_);
  optim::ScheduleOptions options = given;
  options.base_lr = state.bases.at(0);
  state.schedule.emplace(options);
  if (state.schedule->momentum(0)) {
    train::refuse(fmt::format("schedule {} cycles a momentum", options.type),
                  "set its option cycle_momentum to false");
  }
  state.apply();
  return &state;
}

SchedulerState* Accelerator::add_scheduler(const optim::MetricScheduleOptions& given) {
  SchedulerState& state = bound_scheduler(*core_);
  optim::MetricScheduleOptions options = given;
  options.bases = state.bases;
  state.metric.emplace(options);
  state.apply();
  return &state;
}

void Accelerator::add_loader(std::shared_ptr<train::LoaderState> loader) {
  if (std::ranges::find(core_->loaders, loader) != core_->loaders.end()) return;
  const DataLoaderConfiguration& config = core_->options.dataloader;
  train::LoaderState::Dealing dealing;
  dealing.shards = {.num_ranks = core_->num_ranks(),
                    .split_batches = config.split_batches,
                    .even_batches = config.even_batches,
                    .dispatch = config.dispatch_batches.value_or(loader->is_stream())};
  dealing.rank = core_->world().rank();
  dealing.seed = config.data_seed.value_or(core_->options.seed);
  dealing.world = &core_->world();
  train::AcceleratorCore* const core = core_.get();
  dealing.on_epoch = [core](train::LoaderState& state, bool active) {
    std::erase(core->active, &state);
    if (active) core->active.push_back(&state);
  };
  dealing.on_batch = [core](train::LoaderState& state) { core->on_batch(state); };
  loader->deal(std::move(dealing));
  core_->loaders.push_back(std::move(loader));
}

// ---- the loop ----

void Accelerator::accumulate(const std::function<void()>& micro_batch) {
  core_->begin_micro_batch(std::nullopt);
  micro_batch();
  core_->end_micro_batch();
}

void Accelerator::no_sync(const std::function<void()>& micro_batch) {
  core_->begin_micro_batch(false);
  micro_batch();
  core_->end_micro_batch();
}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  core_->backward(loss, options);
}

std::optional<double> Accelerator::clip_norm(const std::vector<ModelState*>& models,
                                             double max_norm) {
  if (!core_->sync) return std::nullopt;
  double square_norm = 0;
  for (ModelState* model : models) {
    if (model->turns == 0) continue;
    const parallel::StepSums& sums = core_->finish(*model);
    square_norm += sums.square_norm * core_->mean_scale(sums) * core_->mean_scale(sums);
  }
  const double norm = std::sqrt(square_norm);
  for (ModelState* model : models) model->clip = optim::clip_coefficient(norm, max_norm);
  return norm;
}

std::optional<double> Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                                                   double max_norm) {
  std::map<ModelState*, std::size_t> found;
  for (const at::Tensor& parameter : parameters) {
    ModelState* const model = core_->model_of(parameter);
    if (model == nullptr) train::refuse("a parameter of no prepared model is to be clipped", "");
    ++found[model];
  }
  std::vector<ModelState*> models;
  for (const auto& [model, count] : found) {
    if (count != model->module->parameters().size()) {
      train::refuse(
          "some of a model's parameters are to be clipped",
          "clip whole models; groups of optim::OptimizerOptions have bounds of their own");
    }
    models.push_back(model);
  }
  return clip_norm(models, max_norm);
}

void Accelerator::clip_value_of(ModelState& model, double clip_value) {
  if (clip_value <= 0) train::refuse("clip_grad_value needs a bound above 0", "");
  if (core_->sync) model.clip_value = clip_value;
}

void Accelerator::autocast(const std::function<void()>& forward, bool enabled) {
  const bool before = at::autocast::is_autocast_enabled(at::kCPU);
  core_->set_autocast(enabled);
  forward();
  core_->set_autocast(before);
}

void Accelerator::join_uneven_inputs(const std::function<void()>& loop, bool even_batches) {
  std::vector<bool> before;
  for (const auto& loader : core_->loaders) {
    before.push_back(loader->even_batches());
    loader->set_even_batches(even_batches);
    loader->join(true);
  }
  loop();
  for (std::size_t l = 0; l < before.size(); ++l) {
    core_->loaders[l]->join(false);
    core_->loaders[l]->set_even_batches(before[l]);
  }
}

// ---- between ranks ----

std::vector<comm::ByteVector> Accelerator::all_gather(const comm::ByteVector& mine) {
  return core_->world().all_gather(mine, "gather");
}

comm::ByteVector Accelerator::broadcast_bytes(comm::ByteVector bytes, int from) {
  return core_->world().broadcast(std::move(bytes), "broadcast", Rank(from));
}

namespace {

std::vector<at::Tensor> of_all(const std::vector<comm::ByteVector>& all) {
  std::vector<at::Tensor> tensors;
  for (const comm::ByteVector& bytes : all) {
    std::span<const std::byte> from = bytes;
    train::unpack(tensors.emplace_back(), from);
  }
  return tensors;
}

comm::ByteVector packed(const at::Tensor& x) {
  comm::ByteVector bytes;
  train::pack(x, bytes);
  return bytes;
}

}  // namespace

at::Tensor Accelerator::gather_tensor(const at::Tensor& x) {
  const at::Tensor mine = x.dim() == 0 ? x.reshape({1}) : x;
  const std::vector<at::Tensor> all = of_all(all_gather(packed(mine)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    const bool fits = all[r].dim() == all[0].dim() &&
                      all[r].sizes().slice(1) == all[0].sizes().slice(1) &&
                      all[r].scalar_type() == all[0].scalar_type();
    if (fits) continue;
    train::refuse(fmt::format("gather: rank 0 has {} [{}], rank {} has {} [{}]",
                              toString(all[0].scalar_type()), fmt::join(all[0].sizes(), ", "), r,
                              toString(all[r].scalar_type()), fmt::join(all[r].sizes(), ", ")),
                  "pad_across_processes() makes dimensions alike");
  }
  return at::cat(all);
}

// A tensor has so many rows for each sample, or nothing to do with samples.
at::Tensor Accelerator::gather_fresh(const at::Tensor& x) {
  train::LoaderState* const loader = core_->active_loader();
  const bool stand_in = loader != nullptr && !loader->counts() && x.dim() > 0;
  const at::Tensor all = gather_tensor(stand_in ? x.narrow(0, 0, 0) : x);
  if (loader == nullptr || !loader->end_of_loader()) return all;
  const data::Shards shards(loader->dealing().shards);
  const std::int64_t fresh = loader->num_fresh();
  const std::int64_t ranks = shards.num_ranks();
  const std::int64_t rows = shards.tail() == data::Tail::kComplete ? shards.step_size()
                            : shards.tail() == data::Tail::kDispatch
                                ? std::min(shards.step_size(), (fresh + ranks - 1) / ranks * ranks)
                                : fresh;
  if (rows == 0 || all.size(0) % rows != 0) return all;
  return all.narrow(0, 0, all.size(0) / rows * fresh);
}

at::Tensor Accelerator::reduce_tensor(const at::Tensor& x, const std::string& reduction,
                                      double scale) {
  if (reduction == "none") return x;
  if (reduction != "sum" && reduction != "mean")
    train::refuse(fmt::format("reduce: unknown reduction '{}'", reduction), "sum, mean or none");
  const std::vector<at::Tensor> all = of_all(all_gather(packed(x)));
  at::Tensor sum = all[0].clone();
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].sizes() != sum.sizes()) {
      train::refuse(fmt::format("reduce: rank 0 has [{}], rank {} has [{}]",
                                fmt::join(sum.sizes(), ", "), r, fmt::join(all[r].sizes(), ", ")),
                    "pad_across_processes() makes dimensions alike");
    }
    sum += all[r];
  }
  if (reduction == "mean") sum = sum / static_cast<double>(all.size());
  return scale == 1 ? sum : sum * scale;
}

at::Tensor Accelerator::pad_tensor(const at::Tensor& x, std::int64_t dim, double pad_index,
                                   bool pad_first) {
  if (dim >= x.dim()) return x;
  std::int64_t longest = 0;
  for (const std::int64_t theirs :
       comm::all_gather_values(core_->world(), x.size(dim), "lengths to pad to"))
    longest = std::max(longest, theirs);
  if (longest == x.size(dim)) return x;
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = longest - x.size(dim);
  const at::Tensor padding = at::full(sizes, pad_index, x.options());
  return pad_first ? at::cat({padding, x}, dim) : at::cat({x, padding}, dim);
}

std::tuple<std::int64_t, std::int64_t, std::int64_t> Accelerator::my_part(std::int64_t size) const {
  const std::int64_t ranks = num_processes();
  const std::int64_t each = size / ranks;
  const std::int64_t more = size % ranks;
  const std::int64_t begin = process_index() * each + std::min<std::int64_t>(process_index(), more);
  const std::int64_t mine = each + (process_index() < more ? 1 : 0);
  return {begin, begin + mine, each + (more > 0 ? 1 : 0)};
}

at::Tensor Accelerator::split_between_processes(const at::Tensor& all, bool apply_padding) {
  const auto [begin, end, most] = my_part(all.size(0));
  const at::Tensor mine = all.slice(0, begin, end);
  if (!apply_padding || all.size(0) == 0 || end - begin == most) return mine;
  std::vector<std::int64_t> repeats(static_cast<std::size_t>(all.dim()), 1);
  repeats[0] = most - (end - begin);
  return at::cat({mine, all.slice(0, all.size(0) - 1).repeat(repeats)});
}

// ---- who does what ----

void Accelerator::wait_for_everyone() { core_->world().barrier("wait for everyone"); }

namespace {

void in_turn(comm::Communicator& world, bool first, const std::function<void()>& action) {
  world.agree("the first ranks", [&] {
    if (first) action();
  });
  world.agree("the other ranks", [&] {
    if (!first) action();
  });
}

}  // namespace

void Accelerator::main_process_first(const std::function<void()>& action) {
  in_turn(core_->world(), is_main_process(), action);
}
void Accelerator::local_main_process_first(const std::function<void()>& action) {
  in_turn(core_->world(), is_local_main_process(), action);
}
void Accelerator::on_main_process(const std::function<void()>& action) { on_process(0, action); }
void Accelerator::on_local_main_process(const std::function<void()>& action) {
  on_local_process(0, action);
}
void Accelerator::on_last_process(const std::function<void()>& action) {
  on_process(num_processes() - 1, action);
}
void Accelerator::on_process(int rank, const std::function<void()>& action) {
  if (rank == process_index()) action();
}
void Accelerator::on_local_process(int local_rank, const std::function<void()>& action) {
  if (local_rank == local_process_index()) action();
}
void Accelerator::print(const std::string& text) {
  if (!is_main_process()) return;
  std::puts(text.c_str());
  std::fflush(stdout);
}

void Accelerator::set_trigger() { core_->trigger = true; }
bool Accelerator::check_trigger() {
  const char mine = std::exchange(core_->trigger, false) ? 1 : 0;
  const auto all = comm::all_gather_values(core_->world(), mine, "check a trigger");
  return std::ranges::any_of(all, [](char theirs) { return theirs != 0; });
}

// ---- logs ----

void Accelerator::init_trackers(const std::string& project,
                                const std::map<std::string, std::string>& config) {
  core_->world().agree("start trackers", [&] {
    if (!is_main_process()) return;
    for (const std::string& name : core_->options.log_with)
      core_->trackers.push_back(make_tracker(name, logging_dir() / project));
    for (const auto& tracker : core_->trackers) tracker->store_init_configuration(config);
  });
}

void Accelerator::add_tracker(std::unique_ptr<Tracker> tracker) {
  if (is_main_process()) core_->trackers.push_back(std::move(tracker));
}

Tracker* Accelerator::get_tracker(const std::string& name) {
  for (const auto& tracker : core_->trackers) {
    if (tracker->name() == name) return tracker.get();
  }
  return nullptr;
}

void Accelerator::log(const LogValues& values, std::int64_t step) {
  for (const auto& tracker : core_->trackers) tracker->log(values, step);
}

void Accelerator::end_training() {
  for (const auto& tracker : core_->trackers) tracker->finish();
  core_->trackers.clear();
}

void Accelerator::profile(const std::filesystem::path& folder,
                          const std::function<void()>& action) {
  std::filesystem::create_directories(folder);
  const auto file = folder / fmt::format("profile_{}.json", process_index());
  const torch::autograd::profiler::RecordProfile record(file.string());
  action();
}

// ---- properties ----

Context& Accelerator::context() { return core_->context; }
const AcceleratorOptions& Accelerator::options() const { return core_->options; }
std::string Accelerator::distributed_type() const {
  return use_distributed() ? core_->options.strategy : "NO";
}
int Accelerator::num_processes() const { return core_->num_ranks(); }
int Accelerator::process_index() const { return core_->rank(); }
int Accelerator::local_process_index() const {
  return core_->context.session().node().local_rank();
}
bool Accelerator::sync_gradients() const { return core_->sync; }
std::int64_t Accelerator::gradient_accumulation_steps() const {
  return core_->options.gradient_accumulation_steps;
}
void Accelerator::set_gradient_accumulation_steps(std::int64_t steps) {
  const auto placed = [](const ModelState& model) { return model.engine.has_value(); };
  if (std::ranges::any_of(core_->models, placed)) {
    train::refuse("gradient_accumulation_steps changes after models were placed",
                  "their memory is laid out for it: set it before prepare()");
  }
  core_->options.gradient_accumulation_steps = steps;
  train::check(core_->options);
}
bool Accelerator::optimizer_step_was_skipped() const {
  return std::ranges::any_of(core_->optimizers, &OptimizerState::skipped);
}
std::filesystem::path Accelerator::logging_dir() const {
  const ProjectConfiguration& project = core_->options.project;
  return project.logging_dir.empty() ? project.project_dir : project.logging_dir;
}
std::int64_t Accelerator::completed_steps() const { return core_->completed_steps; }
std::int64_t Accelerator::save_iteration() const { return core_->saves; }
double Accelerator::last_loss() const { return core_->last_loss; }
double Accelerator::last_grad_norm() const { return core_->last_norm; }
std::string Accelerator::inexact() const {
  for (const ModelState& model : core_->models) {
    if (model.engine && !model.engine->assignment().inexact.empty())
      return model.engine->assignment().inexact;
  }
  return {};
}
void Accelerator::set_seed(std::uint64_t seed) {
  core_->options.seed = seed;
  at::manual_seed(seed);
}

void Accelerator::free_memory() {
  core_->observers.clear();
  core_->active.clear();
  core_->schedulers.clear();
  core_->optimizers.clear();
  core_->models.clear();
  core_->parameters.clear();
  core_->deferred.clear();
  core_->loaders.clear();
}

// ---- handles ----

void PreparedOptimizer::step() { state_->core.step(*state_); }
void PreparedOptimizer::zero_grad() { state_->core.zero_grad(*state_); }
bool PreparedOptimizer::step_was_skipped() const { return state_->skipped; }
std::int64_t PreparedOptimizer::num_updates() const { return state_->updates; }
double PreparedOptimizer::learning_rate() const {
  if (state_->torch != nullptr) return state_->torch->param_groups()[0].options().get_lr();
  optim::UpdateStep update{.number = state_->updates + 1, .rate = state_->rate};
  return state_->models[0]->optimizer->rate(update);
}

namespace {

// A torch scheduler does not tell whose it is: it waits for all.
bool may_tick(const SchedulerState& state) {
  if (!state.core.sync) return false;
  if (state.optimizer != nullptr) return !state.optimizer->skipped;
  return std::ranges::none_of(state.core.optimizers, &OptimizerState::skipped);
}

}  // namespace

void PreparedScheduler::step() {
  if (state_->metric)
    train::refuse("this schedule follows a metric", "call step(metric) after an evaluation");
  if (!may_tick(*state_)) return;
  ++state_->ticks;
  if (state_->torch != nullptr) state_->torch->step();
  state_->apply();
}

void PreparedScheduler::step(double metric) {
  if (!state_->metric) train::refuse("this schedule follows no metric", "call step()");
  state_->metric->observe(metric);
  state_->apply();
}

std::vector<double> PreparedScheduler::get_last_lr() const {
  std::vector<double> rates;
  for (const OptimizerState& optimizer : state_->core.optimizers) {
    if (state_->optimizer != nullptr && state_->optimizer != &optimizer) continue;
    if (optimizer.torch == nullptr) {
      for (const double base : state_->bases)
        rates.push_back(optimizer.rate ? optimizer.rate(base) : base);
    } else {
      for (const auto& group : optimizer.torch->param_groups())
        rates.push_back(group.options().get_lr());
    }
  }
  return rates;
}

std::int64_t find_executable_batch_size(Context& context,
                                        const std::function<void(std::int64_t)>& attempt,
                                        std::int64_t start) {
  for (std::int64_t size = start; size >= 1; size = size * 9 / 10) {
    char failed = 0;
    try {
      attempt(size);
    } catch (const std::exception& exception) {
      if (!train::is_out_of_memory(exception)) throw;
      failed = 1;
    }
    const auto all = comm::all_gather_values(context.world(), failed, "whether memory sufficed");
    if (std::ranges::none_of(all, [](char theirs) { return theirs != 0; })) return size;
  }
  Error error(ErrorKind::kOutOfMemory, "no batch size fits into memory",
              "use a smaller model, or a strategy that shards");
  error.everywhere = true;
  throw error;
}

}  // namespace trireme
