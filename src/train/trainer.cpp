#include "trireme/train/trainer.hpp"

#include "trireme/base/deadline.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/ckpt/hugging_face.hpp"
#include "trireme/ckpt/tools.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/memory/process.hpp"
#include "trireme/model/language_model.hpp"
#include "trireme/obs/metrics.hpp"
#include "trireme/obs/report.hpp"
#include "trireme/optim/loss_scaler.hpp"
#include "trireme/optim/metric_schedule.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/parallel/recompute.hpp"
#include "trireme/train/checkpointing.hpp"
#include "trireme/train/peak.hpp"
#include "trireme/train/stop.hpp"

#include "banner.hpp"
#include "options.hpp"
#include "process_clock.hpp"
#include "seats.hpp"
#include "token_batches.hpp"
#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

namespace trireme::train {

namespace {

namespace fs = std::filesystem;

data::DatasetOptions dataset_options(const config::Data& data,
                                     const std::vector<config::DataSource>& sources) {
  data::DatasetOptions options;
  for (const config::DataSource& source : sources)
    options.sources.push_back({source.path, source.format, source.key, source.weight});
  options.tokenizer = data.tokenizer;
  options.sequence_length = data.sequence_length;
  return options;
}

data::Split open_data(const config::Data& data) {
  auto train = data::open(dataset_options(data, data.train));
  if (!data.eval.empty()) return {train, data::open(dataset_options(data, data.eval))};
  if (data.eval_fraction == 0) return {train, nullptr};
  return data::split(train, data.eval_fraction);
}

// Empty for no file.
std::string read_text(const fs::path& file) {
  std::ostringstream text;
  if (!file.empty()) text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

// The run from the moment that everything is checked: model, engine, data and counters, and what
// moves them.
class Run {
 public:
  Run(Context& context, const config::Loaded& loaded, const TrainOptions& options);

  TrainResult train();

 private:
  void check();
  void make_schedule();
  void build();
  void resume();
  void refuse_newer_checkpoints() const;
  void announce();
  void show_placement();
  double step();
  void update(const parallel::StepSums& sums, double mean_scale, obs::StepMetrics& metrics);
  void note_skip(const parallel::StepSums& sums);
  void note_unused(const parallel::StepSums& sums);
  double evaluate();
  void save();
  void say(const obs::StepMetrics& metrics);
  void write_report();
  bool due(std::int64_t every) const { return every > 0 && state_.step % every == 0; }

  Context& context_;
  config::Loaded loaded_;
  config::Config& config_ = loaded_.config;
  TrainOptions options_;
  RunFolder folder_;
  FileDescriptor lock_;  // root's hold on the folder
  StopRequest stop_;     // from the start, so that an early signal is a stop and not a death
  std::optional<optim::Optimizer> optimizer_;
  std::optional<optim::Schedule> schedule_;  // one of the two
  std::optional<optim::MetricSchedule> metric_schedule_;
  std::optional<optim::LossScaler> scaler_;

  data::Split data_;
  std::string tokenizer_json_;  // goes into checkpoints, so that they can be used without the file
  config::Model shape_;         // with every size that the configuration leaves to be derived
  std::optional<TokenBatches> train_batches_;
  std::optional<TokenBatches> eval_batches_;
  std::int64_t num_eval_batches_ = 0;
  std::optional<parallel::DeferredModule> deferred_;
  std::shared_ptr<model::LanguageModel> model_;
  std::optional<parallel::Engine> engine_;
  TrainingState state_;
  std::optional<obs::MetricsWriter> metrics_;
  ckpt::Saver saver_;

  double flops_per_token_ = 0;
  double peak_flops_ = 0;  // of all ranks together
  double last_save_seconds_ = 0;
  fs::path last_checkpoint_;
  std::int64_t last_saved_step_ = -1;
  bool stop_agreed_ = false;
  bool unused_noted_ = false;
  std::vector<double> recent_step_seconds_;
};

Run::Run(Context& context, const config::Loaded& loaded, const TrainOptions& options)
    : context_(context),
      loaded_(loaded),
      options_(options),
      folder_(loaded.config.run),
      stop_(config_.stop.signals, context.identity().deadline_unix, config_.stop.before_deadline) {
  context_.world().agree("check the run", [this] { check(); });
  build();
  resume();
}

// Everything that can be refused, before anything is built or written. The same on every rank.
void Run::check() {
  parallel::require(context_.session(), engine_options(config_).compute_on);
  optimizer_.emplace(optimizer_options(config_));
  scaler_.emplace(scaler_options(config_.precision));
  make_schedule();
  data_ = open_data(config_.data);
  tokenizer_json_ = read_text(data::tokenizer_file(config_.data.tokenizer));
  if (config_.model.vocab == 0) {
    config_.model.vocab = data_.train->vocabulary_size();
    loaded_.sources["model.vocab"] = "the tokenizer";
  }
  if (config_.model.vocab < data_.train->vocabulary_size()) {
    throw Error(ErrorKind::kConfig,
                fmt::format("model.vocab is {}, but the tokenizer has {} tokens",
                            config_.model.vocab, data_.train->vocabulary_size()),
                "leave model.vocab out: it then is the tokenizer's");
  }
  shape_ = model::resolved(config_.model);
  parallel::require_work_for_all(config_.train.global_batch_size / config_.train.micro_batch_size,
                                 context_.world().size());
  if (options_.resume.mode == Resume::Mode::kPath)
    options_.resume.path = ckpt::resolve(options_.resume.path);
  if (!options_.dry_run && context_.world().is_root()) {
    folder_.prepare(options_.resume);
    lock_ = folder_.lock();
  }
}

void Run::make_schedule() {
  if (optim::MetricSchedule::is(config_.schedule.type)) {
    metric_schedule_.emplace(optim::MetricScheduleOptions{
        config_.schedule.type, config_.schedule.options, optimizer_->base_rates(), {}});
    return;
  }
  schedule_.emplace(schedule_options(config_));
  if (schedule_->momentum(0) && !optimizer_->has_momentum()) {
    throw Error(ErrorKind::kConfig,
                fmt::format("schedule.type: {} cycles a momentum that optimizer.type: {} does not "
                            "have",
                            config_.schedule.type, config_.optimizer.type),
                "set schedule.options: {cycle_momentum: false}");
  }
}

void Run::build() {
  const std::int64_t micro_batch_size = config_.train.micro_batch_size;
  const data::SampleOrder order(data_.train->source_sizes(), config_.run.seed,
                                config_.data.shuffle);
  train_batches_.emplace(data::Batches(data_.train, order, micro_batch_size));
  if (data_.eval != nullptr) {
    const std::uint64_t samples = data_.eval->num_samples();
    const auto all =
        static_cast<std::int64_t>((samples + static_cast<std::uint64_t>(micro_batch_size) - 1) /
                                  static_cast<std::uint64_t>(micro_batch_size));
    num_eval_batches_ =
        config_.train.eval_batches == 0 ? all : std::min(all, config_.train.eval_batches);
    eval_batches_.emplace(
        data::Batches(data_.eval, data::SampleOrder(samples, 0, /*shuffle=*/false),
                      micro_batch_size),
        samples);
  }
  state_.seed = config_.run.seed;
  state_.sequence_length = config_.data.sequence_length;
  state_.train_samples = static_cast<std::int64_t>(data_.train->num_samples());

  deferred_.emplace(config_.run.seed, [this] {
    model_ = model::make(shape_);
    return model_->network();
  });
  if (config_.train.recompute == "full") model_->recompute_blocks(checkpoint);
  if (config_.train.recompute == "attention") model_->recompute_attention(checkpoint);
  parallel::EngineOptions options = engine_options(config_);
  optimizer_->configure(options);
  try {
    engine_.emplace(context_.session(), *model_->network(), *deferred_, options);
  } catch (Error& error) {
    // What does not fit the model or the ranks is found by every rank.
    if (error.kind == ErrorKind::kConfig) error.everywhere = true;
    throw;
  }
  optimizer_->attach(*engine_, context_.world());
  // What a plug-in computes is not known.
  if (shape_.plugin.empty()) {
    flops_per_token_ =
        static_cast<double>(model::flops_per_token(shape_, config_.data.sequence_length));
  }
}

void Run::resume() {
  if (options_.dry_run) return;
  const auto load = [this](const ckpt::Reader& reader) {
    const std::optional<TrainingState> stored = restore(*engine_, *optimizer_, reader);
    last_checkpoint_ = reader.path();
    if (!stored) {
      context_.log().info(fmt::format("{} holds weights alone: training starts from them at step 0",
                                      reader.path().string()));
      return;
    }
    require_same_data(*stored, state_);
    state_ = *stored;
    if (metric_schedule_ && !stored->schedule.empty()) metric_schedule_->restore(stored->schedule);
    if (!stored->loss_scaler.empty()) scaler_->restore(stored->loss_scaler);
    last_saved_step_ = stored->step;
  };
  if (options_.resume.mode == Resume::Mode::kAuto) {
    const auto warn = [this](const std::string& text) { context_.log().warn(text); };
    const auto step = ckpt::load_newest(context_.world(), folder_.checkpoints(), load, warn);
    if (step) context_.log().info(fmt::format("continuing from {}", last_checkpoint_.string()));
  } else if (options_.resume.mode == Resume::Mode::kPath) {
    context_.world().agree("load a checkpoint", [&] { load(ckpt::Reader(options_.resume.path)); });
    context_.world().agree("check the run folder", [&] { refuse_newer_checkpoints(); });
  }
  engine_->refresh_work();
}

void Run::announce() {
  obs::Log& log = context_.log();
  const bool root = context_.world().is_root();
  if (root) {
    log.print(
        banner(context_, loaded_, *engine_, state_, data_.eval ? data_.eval->num_samples() : 0));
    for (const std::string& warning : start_warnings(context_, config_, *engine_))
      log.warn(warning);
  }
  if (options_.dry_run) return;
  log.open(folder_.log(static_cast<int>(context_.world().rank().value)));
  context_.world().agree("open the run folder", [&] {
    if (!root) return;
    std::ofstream file(folder_.config());
    file << config::to_yaml(config_, loaded_.sources);
    if (!file.flush()) throw_errno("write", folder_.config().string());
    metrics_.emplace(folder_.root, state_.step, config_.log.tensorboard);
  });
  train_batches_->read(static_cast<std::uint64_t>(state_.samples),
                       engine_->assignment().rounds[0][0]);
  context_.world().barrier("ready");
  log.info(fmt::format("ready {:.2f} s after the start: weights placed, first batch in memory",
                       process_age()));
  show_placement();
  const double peak = measure_gemm_peak(compute_type(config_));
  for (const double rank_peak : comm::all_gather_values(context_.world(), peak, "product peak")) {
    peak_flops_ += rank_peak;
  }
}

TrainResult Run::train() {
  announce();
  if (options_.dry_run) return {};
  TrainResult result;
  const auto start = Clock::now();
  while (state_.step < config_.train.max_steps && !stop_agreed_) {
    result.loss = step();
    if (due(config_.checkpoint.every)) save();
  }
  if (last_saved_step_ != state_.step) save();
  result.preempted = stop_agreed_ && state_.step < config_.train.max_steps;
  if (result.preempted) {
    context_.log().info(fmt::format("stopped at step {} by {}; continue with --resume auto",
                                    state_.step, stop_.reason()));
  }
  if (context_.world().is_root()) write_report();
  result.step = state_.step;
  result.tokens = state_.tokens;
  result.seconds = seconds_since(start);
  result.checkpoint = last_checkpoint_;
  return result;
}

// After "ready", because hwloc opens a hundred files.
void Run::show_placement() {
  const auto nodes = gather_seats(context_, threads_of(context_, config_.run));
  if (!context_.world().is_root()) return;
  if (context_.world().size() > 1) context_.log().print(cluster::placement_table(nodes));
  for (const std::string& warning : cluster::placement_warnings(nodes))
    context_.log().warn(warning);
}

// One optimizer step, straight down: forward and backward, sums over ranks, update, publication,
// words.
double Run::step() {
  const auto start = Clock::now();
  const auto position = static_cast<std::uint64_t>(state_.samples);
  // Losses are summed over targets; dividing by the size of a full micro-batch keeps gradients in
  // range, and the mean over the true number of targets follows in the update.
  const double nominal =
      static_cast<double>(config_.train.micro_batch_size * config_.data.sequence_length);

  engine_->accumulate(Step(state_.step + 1), [&](std::int64_t m) {
    at::manual_seed(mix(mix(config_.run.seed, static_cast<std::uint64_t>(state_.step)),
                        static_cast<std::uint64_t>(m)));
    const TokenBatch batch = train_batches_->read(position, m);
    return parallel::MicroBatchLoss{
        model_->loss_sum(batch.inputs_BT, batch.targets_BT) / (nominal / scaler_->scale()),
        batch.targets_BT.numel()};
  });
  const double passes_seconds = seconds_since(start);
  const parallel::Engine::CommSeconds in_passes = engine_->take_comm_seconds();
  const parallel::StepSums sums = engine_->sums({stop_.requested(), memory::peak_resident()});
  const double mean_scale =
      nominal / static_cast<double>(sums.num_targets) * double{scaler_->inverse()};
  const double norm = std::sqrt(sums.square_norm) * mean_scale;

  note_unused(sums);
  if (const std::string note = engine_->take_note(); !note.empty()) context_.log().warn(note);
  obs::StepMetrics metrics;
  update(sums, mean_scale, metrics);
  state_.step += 1;
  state_.samples += config_.train.global_batch_size;
  state_.tokens += sums.num_targets;
  stop_agreed_ = sums.stop;

  metrics.step = state_.step;
  metrics.loss = sums.loss * mean_scale;
  metrics.grad_norm = norm;
  metrics.tokens = state_.tokens;
  metrics.samples = state_.samples;
  metrics.skipped = state_.skipped;
  metrics.rss_mib_max = static_cast<double>(sums.peak_resident.value) / (1 << 20);
  metrics.data_s = train_batches_->take_seconds();
  const parallel::Engine::CommSeconds comm = engine_->take_comm_seconds();
  metrics.comm_s = in_passes.exposed + comm.exposed;
  const double exchanges = in_passes.under_way + comm.under_way;
  if (exchanges > 0) metrics.exchange_s = exchanges;
  const memory::TierStats disk = engine_->take_tier_stats();
  if (disk.busy > 0) {
    metrics.offload_stall_s = disk.stalled;
    metrics.offload_io_s = disk.busy;
  }
  metrics.compute_s = std::max(0.0, passes_seconds - *metrics.data_s - in_passes.exposed);
  metrics.step_s = seconds_since(start);
  metrics.tokens_per_s = static_cast<double>(sums.num_targets) / *metrics.step_s;
  if (flops_per_token_ > 0) metrics.mfu = *metrics.tokens_per_s * flops_per_token_ / peak_flops_;
  if (last_save_seconds_ > 0) metrics.ckpt_s = std::exchange(last_save_seconds_, 0.0);
  if (eval_batches_ && due(config_.train.eval_every)) {
    metrics.eval_loss = evaluate();
    if (metric_schedule_) metric_schedule_->observe(*metrics.eval_loss);
  }
  say(metrics);
  return *metrics.loss;
}

void Run::update(const parallel::StepSums& sums, double mean_scale, obs::StepMetrics& metrics) {
  const auto start = Clock::now();
  // The rate of the k-th update (from 0) is the schedule's value at k, as in torch: a skipped step
  // does not tick.
  const std::int64_t done = state_.updates();
  optim::UpdateStep update{
      .number = done + 1, .grad_scale = mean_scale, .rate = [this, done](double base) {
        return metric_schedule_ ? metric_schedule_->rate(base) : schedule_->rate(base, done);
      }};
  if (const auto momentum = schedule_ ? schedule_->momentum(done) : std::nullopt) {
    update.momentum = momentum->beta1;
    update.beta2 = momentum->beta2;
  }
  metrics.lr = optimizer_->rate(update);
  if (sums.non_finite.empty()) {
    optimizer_->update(*engine_, sums, update);
    state_.skips_in_a_row = 0;
  } else {
    note_skip(sums);
  }
  if (config_.precision.compute == "fp16") metrics.loss_scale = scaler_->scale();
  scaler_->update(!sums.non_finite.empty());
  metrics.optim_s = seconds_since(start);
  engine_->publish();
}

// Once: a model that leaves parameters out does so in most steps.
void Run::note_unused(const parallel::StepSums& sums) {
  if (sums.unused.empty() || unused_noted_) return;
  unused_noted_ = true;
  const std::string text =
      fmt::format("step {}: {} parameters that train had no gradient: {}{}", state_.step + 1,
                  sums.unused.size(), sums.unused[0], sums.unused.size() > 1 ? ", ..." : "");
  if (config_.parallel.unused_parameters == "zero") {
    return context_.log().warn(text +
                               "; it counts as zero, and they decay (model.frozen stops that)");
  }
  Error error(ErrorKind::kConfig, text,
              "freeze them (model.frozen), or set parallel.unused_parameters: zero");
  error.everywhere = true;
  throw error;
}

void Run::note_skip(const parallel::StepSums& sums) {
  state_.skipped += 1;
  state_.skips_in_a_row += 1;
  context_.log().warn(fmt::format("step {}: no update, the gradient of {} is not finite",
                                  state_.step + 1, sums.non_finite));
  if (state_.skips_in_a_row < config_.precision.max_skips) return;
  Error error(ErrorKind::kConfig,
              fmt::format("gradients were not finite for {} steps in a row, first in {}",
                          state_.skips_in_a_row, sums.non_finite),
              "lower optimizer.lr, or look at the data; earlier checkpoints are untouched");
  error.step = state_.step + 1;
  error.everywhere = true;
  throw error;
}

// Ranks take micro-batches in turn, all equally many, so that strategies that gather weights stay
// in step.
double Run::evaluate() {
  struct Sum {
    double loss;
    std::int64_t targets;
  };
  comm::Communicator& world = context_.world();
  const std::int64_t ranks = world.size();
  std::vector<Sum> mine;
  engine_->evaluate([&] {
    for (std::int64_t first = 0; first < num_eval_batches_; first += ranks) {
      const std::int64_t m = first + world.rank().value;
      const TokenBatch batch = eval_batches_->read(0, std::min(m, num_eval_batches_ - 1));
      const double loss = model_->loss_sum(batch.inputs_BT, batch.targets_BT).item<double>();
      const auto targets = (batch.targets_BT != model::kIgnoredTarget).sum().item<std::int64_t>();
      if (m < num_eval_batches_) mine.push_back({loss, targets});
    }
  });
  const auto all = world.all_gather(std::as_bytes(std::span(mine)), "evaluation losses");
  Sum total{0, 0};
  for (std::int64_t m = 0; m < num_eval_batches_; ++m) {
    const auto& theirs = all[static_cast<std::size_t>(m % ranks)];
    const auto* sums = reinterpret_cast<const Sum*>(theirs.data());
    total.loss += sums[m / ranks].loss;
    total.targets += sums[m / ranks].targets;
  }
  return total.loss / static_cast<double>(total.targets);
}

ckpt::SaveOptions save_options(const config::Checkpoint& checkpoint, const fs::path& folder,
                               Step step) {
  ckpt::SaveOptions options{folder, step, static_cast<int>(checkpoint.keep)};
  if (checkpoint.files == "node") options.files = ckpt::Files::kNode;
  if (checkpoint.driver == "mpiio") options.driver = ckpt::Driver::kMpiio;
  if (checkpoint.transfer == "collective") options.mpiio.transfer = ckpt::Transfer::kCollective;
  return options;
}

void Run::save() {
  const auto start = Clock::now();
  context_.session().node().set_place("save", state_.step);
  if (metric_schedule_) state_.schedule = metric_schedule_->state();
  state_.loss_scaler = scaler_->state();
  ckpt::SaveOptions options =
      save_options(config_.checkpoint, folder_.checkpoints(), Step(state_.step));
  options.node = context_.session().topology().node;
  ckpt::Snapshot content =
      snapshot(*engine_, *optimizer_, state_, config::to_yaml(config_, loaded_.sources));
  if (!tokenizer_json_.empty())
    content.extra.emplace(std::string(ckpt::kStoredTokenizer), tokenizer_json_);
  const ckpt::SaveResult saved = saver_.save(context_.world(), content, options);
  last_save_seconds_ = seconds_since(start);
  last_checkpoint_ = saved.path;
  last_saved_step_ = state_.step;
  for (const std::string& note : saved.notes) context_.log().info(note);
  context_.log().info(fmt::format("saved {} ({}, {:.2f} s)", saved.path.string(),
                                  human(saved.bytes), last_save_seconds_));
}

void Run::say(const obs::StepMetrics& metrics) {
  context_.world().agree("write metrics", [&] {
    if (metrics_) metrics_->write(metrics);
  });
  recent_step_seconds_.push_back(*metrics.step_s);
  const bool last = state_.step == config_.train.max_steps;
  if (!last && !due(config_.log.every) && !metrics.eval_loss) return;
  double recent = 0;
  for (const double seconds : recent_step_seconds_) recent += seconds;
  const double left = recent / static_cast<double>(recent_step_seconds_.size()) *
                      static_cast<double>(config_.train.max_steps - state_.step);
  context_.log().info(obs::progress_line(metrics, config_.train.max_steps, left));
  recent_step_seconds_.clear();
}

// The checkpoint is safe: a report that cannot be written is worth a warning, not the run's exit
// code.
void Run::write_report() {
  try {
    obs::write_report(folder_.root);
  } catch (const std::exception& exception) {
    context_.log().warn(fmt::format("no report.html: {}", exception.what()));
  }
}

// Going on from an old checkpoint beside newer ones would leave two histories in one folder.
void Run::refuse_newer_checkpoints() const {
  for (const fs::path& path : ckpt::list(folder_.checkpoints())) {
    if (path.filename().string() <= options_.resume.path.filename().string()) return;
    throw Error(ErrorKind::kConfig,
                fmt::format("{} holds {}, newer than {}", folder_.checkpoints().string(),
                            path.filename().string(), options_.resume.path.string()),
                "move the newer ones away, or choose another run.name for what follows");
  }
}

}  // namespace

TrainResult train(Context& context, const config::Loaded& loaded, const TrainOptions& options) {
  context.session().set_timeout(std::chrono::duration<double>(loaded.config.run.timeout));
  at::set_num_threads(threads_of(context, loaded.config.run));
  Run run(context, loaded, options);
  return run.train();
}

}  // namespace trireme::train
