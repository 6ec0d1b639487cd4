#include "trireme/config/fields.hpp"

#include <algorithm>

namespace trireme::config {

namespace {

template <auto Part, auto Member>
Slot at(Config& config) {
  return &(config.*Part.*Member);
}

template <auto Member, class Entry>
Slot at(Entry& entry) {
  return &(entry.*Member);
}

constexpr Range at_least(double min) { return {.min = min}; }
constexpr Range above(double min) { return {.min = min, .above_min = true}; }
constexpr Range between(double min, double max) { return {.min = min, .max = max}; }

// Large enough for every model there is, small enough that products of a few of them fit into 64
// bits.
constexpr double kMaxSize = 1 << 20;
constexpr double kMaxCount = 1e12;

constexpr std::string_view kNoOffload = "offloading is not in this version; set none";

std::vector<Field> make_fields() {
  using C = Config;
  return {
      // run
      {{"run.name", "folder name", "name of the run; its files go to <run.dir>/<run.name>",
        Form::kFileName},
       at<&C::run, &Run::name>},
      {{"run.dir", "path", "folder that holds the runs", Form::kPath}, at<&C::run, &Run::dir>},
      {{"run.seed", "", "seed of initial weights, order of samples and sampling"},
       at<&C::run, &Run::seed>},
      {{"run.reproducible", "",
        "same numbers to the bit for every strategy and number of ranks that divides the work; "
        "false: a "
        "rank uses all the cores there are for it"},
       at<&C::run, &Run::reproducible>},
      {{"run.threads", "threads", "threads per rank for matrix products", Form::kPlain,
        between(1, 4096)},
       at<&C::run, &Run::threads>},
      {{"run.device",
        "",
        "where the network computes: cpu, or cuda for a GPU of its own for each rank, which the "
        "program must be built for and the node must have",
        Form::kPlain,
        {},
        {{"cpu"}, {"cuda"}}},
       at<&C::run, &Run::device>},
      {{"run.timeout",
        "seconds",
        "how long any wait for another rank may take",
        Form::kSeconds,
        {.min = 0, .max = 604800, .above_min = true}},
       at<&C::run, &Run::timeout>},

      // model
      {{"model.type", "", "architecture", Form::kPlain, {}, {{"gpt2"}, {"llama"}}},
       at<&C::model, &Model::type>},
      {{"model.layers", "blocks", "number of transformer blocks", Form::kPlain, between(1, 16384)},
       at<&C::model, &Model::layers>},
      {{"model.hidden", "features", "width of the residual stream", Form::kPlain,
        between(1, kMaxSize)},
       at<&C::model, &Model::hidden>},
      {{"model.heads", "heads", "attention heads; must divide model.hidden", Form::kPlain,
        between(1, 65536)},
       at<&C::model, &Model::heads>},
      {{"model.kv_heads", "heads",
        "key and value heads of llama; must divide model.heads; unset: as many as model.heads",
        Form::kUnset, between(0, 65536)},
       at<&C::model, &Model::kv_heads>},
      {{"model.context", "tokens", "longest sequence the model can see", Form::kPlain,
        between(1, 16777216)},
       at<&C::model, &Model::context>},
      {{"model.vocab", "tokens", "rows of the embedding; unset: the tokenizer's", Form::kUnset,
        between(0, 16777216)},
       at<&C::model, &Model::vocab>},
      {{"model.intermediate", "features",
        "width of the MLP; unset: 4 x hidden (gpt2), 8/3 x hidden rounded up to 32 (llama)",
        Form::kUnset, between(0, 8 * kMaxSize)},
       at<&C::model, &Model::intermediate>},
      {{"model.tied_head", "", "whether the output head is the token embedding"},
       at<&C::model, &Model::tied_head>},
      {{"model.norm_eps",
        "",
        "epsilon of the norms",
        Form::kPlain,
        {.min = 0, .max = 1, .above_min = true, .below_max = true}},
       at<&C::model, &Model::norm_eps>},
      {{"model.rope_theta", "", "base of llama's rotary embedding", Form::kPlain, above(0)},
       at<&C::model, &Model::rope_theta>},
      {{"model.init_std",
        "",
        "standard deviation of the initial weights",
        Form::kPlain,
        {.min = 0, .max = 10, .above_min = true}},
       at<&C::model, &Model::init_std>},
      {{"model.plugin", "file",
        "a shared library with the model (TRIREME_REGISTER_MODEL), instead of type and sizes",
        Form::kUnset},
       at<&C::model, &Model::plugin>},
      {{"model.args", "", "what the plug-in's factory is given, such as {width: 64}"},
       at<&C::model, &Model::args>},
      {{"model.frozen", "patterns",
        "parameters (regular expressions on their name) that are not trained"},
       at<&C::model, &Model::frozen>},

      // data
      {{"data.train", "files",
        "what to train on: a list of {path, format, weight, key}, or a path"},
       at<&C::data, &Data::train>},
      {{"data.eval", "files",
        "what to evaluate on; empty: the last data.eval_fraction of data.train is held out"},
       at<&C::data, &Data::eval>},
      {{"data.eval_fraction",
        "fraction",
        "part of data.train held out for evaluation",
        Form::kPlain,
        {.min = 0, .max = 1, .below_max = true}},
       at<&C::data, &Data::eval_fraction>},
      {{"data.tokenizer", "",
        "how text becomes tokens; bytes: one token per byte; the path of a Hugging Face "
        "tokenizer.json, or of a folder with one; a number: the vocabulary of files that hold "
        "tokens "
        "already",
        Form::kPath},
       at<&C::data, &Data::tokenizer>},
      {{"data.sequence_length", "tokens", "length of a training sequence; at most model.context",
        Form::kPlain, between(1, 16777216)},
       at<&C::data, &Data::sequence_length>},
      {{"data.shuffle", "", "whether each epoch has its own random order of samples"},
       at<&C::data, &Data::shuffle>},

      // train
      {{"train.global_batch_size", "sequences",
        "sequences per optimizer step, over all ranks; a multiple of the micro-batch", Form::kPlain,
        between(1, 16777216)},
       at<&C::train, &Train::global_batch_size>},
      {{"train.micro_batch_size", "sequences", "sequences per forward pass of one rank",
        Form::kPlain, between(1, kMaxSize)},
       at<&C::train, &Train::micro_batch_size>},
      {{"train.recompute",
        "",
        "what backward computes again instead of keeping it: attention, or full (every block); the "
        "same numbers, less memory",
        Form::kPlain,
        {},
        {{"none"}, {"attention"}, {"full"}}},
       at<&C::train, &Train::recompute>},
      {{"train.max_steps", "steps", "optimizer steps after which the run ends", Form::kPlain,
        between(1, kMaxCount)},
       at<&C::train, &Train::max_steps>},
      {{"train.eval_every", "steps", "steps between evaluations; 0: never", Form::kPlain,
        between(0, kMaxCount)},
       at<&C::train, &Train::eval_every>},
      {{"train.eval_batches", "micro-batches", "length of an evaluation; 0: all evaluation data",
        Form::kPlain, between(0, kMaxCount)},
       at<&C::train, &Train::eval_batches>},

      // optimizer
      {{"optimizer.type",
        "",
        "optimizer",
        Form::kPlain,
        {},
        {{"adamw"}, {"adam"}, {"sgd"}, {"adagrad"}, {"lion"}, {"adafactor"}}},
       at<&C::optimizer, &Optimizer::type>},
      {{"optimizer.lr",
        "",
        "peak learning rate",
        Form::kPlain,
        {.min = 0, .max = 1e3, .above_min = true}},
       at<&C::optimizer, &Optimizer::lr>},
      {{"optimizer.betas",
        "",
        "decay of the two moments of adamw, adam and lion",
        Form::kPlain,
        {.min = 0, .max = 1, .below_max = true}},
       at<&C::optimizer, &Optimizer::betas>},
      {{"optimizer.eps",
        "",
        "epsilon of adamw, adam and adagrad",
        Form::kPlain,
        {.min = 0, .max = 1, .above_min = true}},
       at<&C::optimizer, &Optimizer::eps>},
      {{"optimizer.weight_decay", "",
        "weight decay; decoupled, but part of the gradient for adam, sgd and adagrad", Form::kPlain,
        between(0, 1e3)},
       at<&C::optimizer, &Optimizer::weight_decay>},
      {{"optimizer.decay_all", "",
        "whether norms and biases decay too (parameters with fewer than two dimensions)"},
       at<&C::optimizer, &Optimizer::decay_all>},
      {{"optimizer.clip_norm", "",
        "largest norm of the whole gradient (outside groups with a bound of their own); 0: no "
        "clipping",
        Form::kPlain, at_least(0)},
       at<&C::optimizer, &Optimizer::clip_norm>},
      {{"optimizer.clip_value", "",
        "largest magnitude of each element of the gradient, after clip_norm; 0: no clipping",
        Form::kPlain, at_least(0)},
       at<&C::optimizer, &Optimizer::clip_value>},
      {{"optimizer.maximize", "", "whether the loss is maximized"},
       at<&C::optimizer, &Optimizer::maximize>},
      {{"optimizer.amsgrad", "", "adamw, adam: divide by the largest second moment so far"},
       at<&C::optimizer, &Optimizer::amsgrad>},
      {{"optimizer.momentum",
        "",
        "sgd: momentum; adafactor: decay of the first moment; 0: none",
        Form::kPlain,
        {.min = 0, .max = 1, .below_max = true}},
       at<&C::optimizer, &Optimizer::momentum>},
      {{"optimizer.dampening", "", "sgd: part of the gradient kept out of the momentum",
        Form::kPlain, between(0, 1)},
       at<&C::optimizer, &Optimizer::dampening>},
      {{"optimizer.nesterov", "", "sgd: Nesterov momentum"},
       at<&C::optimizer, &Optimizer::nesterov>},
      {{"optimizer.lr_decay", "", "adagrad: decay of the learning rate", Form::kPlain, at_least(0)},
       at<&C::optimizer, &Optimizer::lr_decay>},
      {{"optimizer.initial_accumulator", "", "adagrad: first value of the sums of squares",
        Form::kPlain, at_least(0)},
       at<&C::optimizer, &Optimizer::initial_accumulator>},
      {{"optimizer.adafactor_eps",
        "",
        "adafactor: added to squared gradients; least root mean square that scales the rate",
        Form::kPlain,
        {.min = 0, .max = 1, .above_min = true}},
       at<&C::optimizer, &Optimizer::adafactor_eps>},
      {{"optimizer.clip_threshold", "", "adafactor: largest root mean square of an update",
        Form::kPlain, above(0)},
       at<&C::optimizer, &Optimizer::clip_threshold>},
      {{"optimizer.decay_rate", "", "adafactor: exponent of the second moment's decay",
        Form::kPlain, between(-10, 0)},
       at<&C::optimizer, &Optimizer::decay_rate>},
      {{"optimizer.scale_parameter", "",
        "adafactor: rate relative to the root mean square of each weight"},
       at<&C::optimizer, &Optimizer::scale_parameter>},
      {{"optimizer.relative_step", "",
        "adafactor: rate from the number of the update alone, instead of lr and schedule"},
       at<&C::optimizer, &Optimizer::relative_step>},
      {{"optimizer.warmup_init", "", "adafactor: relative_step rises slowly"},
       at<&C::optimizer, &Optimizer::warmup_init>},
      {{"optimizer.groups", "groups",
        "parameters with settings of their own: a list of {match, ...}; the first whose "
        "expression matches a parameter's name holds"},
       at<&C::optimizer, &Optimizer::groups>},

      // schedule
      {{"schedule.type",
        "",
        "how the learning rate moves: by the names of transformers, torch (one_cycle) and "
        "DeepSpeed (capitals)",
        Form::kPlain,
        {},
        {{"constant"},
         {"constant_with_warmup"},
         {"linear"},
         {"cosine"},
         {"cosine_with_restarts"},
         {"polynomial"},
         {"inverse_sqrt"},
         {"cosine_with_min_lr"},
         {"cosine_warmup_with_min_lr"},
         {"warmup_stable_decay"},
         {"reduce_lr_on_plateau"},
         {"greedy"},
         {"one_cycle"},
         {"WarmupLR"},
         {"WarmupDecayLR"},
         {"WarmupCosineLR"},
         {"OneCycle"},
         {"LRRangeTest"}}},
       at<&C::schedule, &Schedule::type>},
      {{"schedule.warmup_steps", "steps", "steps over which the learning rate rises from 0",
        Form::kPlain, between(0, kMaxCount)},
       at<&C::schedule, &Schedule::warmup_steps>},
      {{"schedule.total_steps", "steps",
        "horizon of the schedule, so that a run can be cut into parts; unset: train.max_steps",
        Form::kUnset, between(0, kMaxCount)},
       at<&C::schedule, &Schedule::total_steps>},
      {{"schedule.min_lr_ratio", "fraction", "last learning rate as a fraction of the peak",
        Form::kPlain, between(0, 1)},
       at<&C::schedule, &Schedule::min_lr_ratio>},
      {{"schedule.hold", "",
        "whether the rate stays behind total_steps; false: goes on as the original does (a cosine "
        "rises again)"},
       at<&C::schedule, &Schedule::hold>},
      {{"schedule.options", "",
        "further options of the type by the original's names, such as {num_cycles: 2}"},
       at<&C::schedule, &Schedule::options>},

      // precision
      {{"precision.compute",
        "",
        "type of weights and activations in forward and backward",
        Form::kPlain,
        {},
        {{"bf16"}, {"fp16"}, {"fp32"}}},
       at<&C::precision, &Precision::compute>},
      {{"precision.keep_fp32", "patterns",
        "parameters (regular expressions on their name) that stay fp32 in forward and backward"},
       at<&C::precision, &Precision::keep_fp32>},
      {{"precision.reduce",
        "",
        "type in which sums of gradients travel between nodes; they are added in fp32",
        Form::kPlain,
        {},
        {{"fp32"},
         {"bf16"},
         {"fp16", "adding gradients in fp16 is not in this version; set fp32"}}},
       at<&C::precision, &Precision::reduce>},
      {{"precision.moments",
        "",
        "type of the optimizer's moments; bf16 is rounded stochastically",
        Form::kPlain,
        {},
        {{"fp32"}, {"bf16"}}},
       at<&C::precision, &Precision::moments>},
      {{"precision.loss_scale", "", "fp16: dynamic, or the number that losses are multiplied with",
        Form::kPath},
       at<&C::precision, &Precision::loss_scale>},
      {{"precision.initial_scale", "", "fp16, dynamic: first loss scale", Form::kPlain, above(0)},
       at<&C::precision, &Precision::initial_scale>},
      {{"precision.growth_factor", "", "fp16, dynamic: how the scale grows", Form::kPlain,
        above(1)},
       at<&C::precision, &Precision::growth_factor>},
      {{"precision.backoff_factor",
        "",
        "fp16, dynamic: how the scale falls after an overflow",
        Form::kPlain,
        {.min = 0, .max = 1, .above_min = true, .below_max = true}},
       at<&C::precision, &Precision::backoff_factor>},
      {{"precision.growth_interval", "steps", "fp16, dynamic: good steps until the scale grows",
        Form::kPlain, between(1, kMaxCount)},
       at<&C::precision, &Precision::growth_interval>},
      {{"precision.hysteresis", "overflows",
        "fp16, dynamic: overflows until the scale falls; above 1 by DeepSpeed's rule", Form::kPlain,
        between(1, 1000)},
       at<&C::precision, &Precision::hysteresis>},
      {{"precision.consecutive_hysteresis", "",
        "fp16 with hysteresis above 1: whether every good step forgives earlier overflows"},
       at<&C::precision, &Precision::consecutive_hysteresis>},
      {{"precision.min_scale", "",
        "fp16 with hysteresis above 1: least scale; an overflow there ends the run", Form::kPlain,
        above(0)},
       at<&C::precision, &Precision::min_scale>},
      {{"precision.max_skips", "steps",
        "steps in a row without an update, because gradients were not finite, that end the run",
        Form::kPlain, between(1, kMaxCount)},
       at<&C::precision, &Precision::max_skips>},

      // parallel
      {{"parallel.strategy",
        "",
        "what a rank keeps only its shard of: ddp nothing; zero1 fp32 weights and moments; zero2 "
        "gradients too; zero3 all; hsdp all, inside groups of ranks that are replicas",
        Form::kPlain,
        {},
        {{"ddp"}, {"zero1"}, {"zero2"}, {"zero3"}, {"hsdp"}}},
       at<&C::parallel, &Parallel::strategy>},
      {{"parallel.units", "",
        "what is gathered, released and reduced together. auto: repeated blocks; none: the whole "
        "model; size:20M: modules with that many parameters; else module classes (BlockA, BlockB)",
        Form::kPath},
       at<&C::parallel, &Parallel::units>},
      {{"parallel.shard_size", "ranks",
        "hsdp: ranks that hold the model together; unset: those of a node", Form::kUnset,
        between(0, kMaxSize)},
       at<&C::parallel, &Parallel::shard_size>},
      {{"parallel.reshard_after_forward", "",
        "zero3 and hsdp over several nodes: whether weights make room for others once used; false: "
        "they stay until the update, a whole copy on each node"},
       at<&C::parallel, &Parallel::reshard_after_forward>},
      {{"parallel.ignored", "patterns",
        "modules (regular expressions on their path) that stay whole on every rank, untrained"},
       at<&C::parallel, &Parallel::ignored>},
      {{"parallel.unused_parameters",
        "",
        "parameters without a gradient in a step: zero (said once) or error",
        Form::kPlain,
        {},
        {{"zero"}, {"error"}}},
       at<&C::parallel, &Parallel::unused_parameters>},

      // offload
      {{"offload.work",
        "",
        "where shards of the weights that the network computes with live; without a GPU host is "
        "where they are",
        Form::kPlain,
        {},
        {{"none"}, {"host"}, {"nvme"}}},
       at<&C::offload, &Offload::work>},
      {{"offload.grad",
        "",
        "where sums of gradients live; without a GPU host is where they are",
        Form::kPlain,
        {},
        {{"none"}, {"host"}, {"nvme"}}},
       at<&C::offload, &Offload::grad>},
      {{"offload.optimizer",
        "",
        "where fp32 weights and moments live; without a GPU host is where they are",
        Form::kPlain,
        {},
        {{"none"}, {"host"}, {"nvme"}}},
       at<&C::offload, &Offload::optimizer>},
      {{"offload.nvme_path", "path", "folder for data offloaded to NVMe", Form::kUnset},
       at<&C::offload, &Offload::nvme_path>},

      // checkpoint
      {{"checkpoint.every", "steps", "steps between checkpoints; 0: only at the end", Form::kPlain,
        between(0, kMaxCount)},
       at<&C::checkpoint, &Checkpoint::every>},
      {{"checkpoint.keep", "checkpoints", "how many of the newest are kept; 0: all", Form::kPlain,
        between(0, kMaxCount)},
       at<&C::checkpoint, &Checkpoint::keep>},
      {{"checkpoint.async", "", "whether training goes on while a checkpoint is written"},
       at<&C::checkpoint, &Checkpoint::async>},
      {{"checkpoint.driver",
        "",
        "how ranks write the checkpoint file",
        Form::kPlain,
        {},
        {{"direct"}, {"mpiio"}}},
       at<&C::checkpoint, &Checkpoint::driver>},
      {{"checkpoint.files",
        "",
        "one state file for all ranks, or one for each node with what its ranks hold",
        Form::kPlain,
        {},
        {{"single"}, {"node"}}},
       at<&C::checkpoint, &Checkpoint::files>},
      {{"checkpoint.transfer",
        "",
        "how ranks call MPI-IO: each when it has something, or all together",
        Form::kPlain,
        {},
        {{"independent"}, {"collective"}}},
       at<&C::checkpoint, &Checkpoint::transfer>},

      // log
      {{"log.every", "steps", "steps between progress lines; metrics.jsonl has every step",
        Form::kPlain, between(1, kMaxCount)},
       at<&C::log, &Log::every>},
      {{"log.tensorboard", "", "whether a TensorBoard event file is written"},
       at<&C::log, &Log::tensorboard>},

      // stop
      {{"stop.before_deadline", "seconds",
        "how long before the job's time limit the run saves and stops", Form::kSeconds,
        between(0, 604800)},
       at<&C::stop, &Stop::before_deadline>},
      {{"stop.signals",
        "",
        "signals on which the run saves and stops",
        Form::kPlain,
        {},
        {{"USR1"}, {"USR2"}, {"TERM"}, {"INT"}, {"HUP"}}},
       at<&C::stop, &Stop::signals>},
  };
}

std::vector<SourceField> make_source_fields() {
  return {
      {{"path", "path", "file", Form::kPath}, at<&DataSource::path>},
      {{"format",
        "",
        "text and jsonl, which may be packed (.gz, .zst); tokens: a folder that Trireme wrote; "
        "megatron (.bin and .idx), llm.c, nanogpt (bare uint16), uint32 (bare)",
        Form::kPlain,
        {},
        {{"text"},
         {"jsonl"},
         {"tokens"},
         {"megatron"},
         {"llm.c"},
         {"nanogpt"},
         {"uint32"},
         {"parquet",
          "Debian 12 has no library that reads Parquet; write JSON lines from it, such "
          "as pandas.read_parquet(..).to_json(orient='records', lines=True)"}}},
       at<&DataSource::format>},
      {{"weight",
        "",
        "how often this file's samples occur in an epoch",
        Form::kPlain,
        {.min = 0, .max = 1e6, .above_min = true}},
       at<&DataSource::weight>},
      {{"key", "", "jsonl: the key of the text in each line", Form::kPath}, at<&DataSource::key>},
  };
}

std::vector<GroupField> make_group_fields() {
  constexpr Range kFraction{.min = 0, .max = 1, .below_max = true};
  return {
      {{"match", "expression", "regular expression that is found in a parameter's name",
        Form::kPath},
       at<&ParameterGroup::match>},
      {{"lr_multiplier", "", "of optimizer.lr", Form::kUnset, between(0, 1e6)},
       at<&ParameterGroup::lr_multiplier>},
      {{"betas", "", "instead of optimizer.betas", Form::kPlain, kFraction},
       at<&ParameterGroup::betas>},
      {{"eps",
        "",
        "instead of optimizer.eps",
        Form::kUnset,
        {.min = 0, .max = 1, .above_min = true}},
       at<&ParameterGroup::eps>},
      {{"weight_decay", "", "instead of optimizer.weight_decay, for norms and biases too",
        Form::kUnset, between(0, 1e3)},
       at<&ParameterGroup::weight_decay>},
      {{"clip_norm", "", "largest norm of this group's gradient, which is then clipped alone",
        Form::kUnset, above(0)},
       at<&ParameterGroup::clip_norm>},
  };
}

constexpr std::string_view kNoImport =
    "models from elsewhere are not in this version; describe the model by model.type, "
    "model.layers, model.hidden, model.heads and model.context";

constexpr LaterKey kLaterKeys[] = {
    {"model.from", kNoImport},
};

constexpr Section kSections[] = {
    {"run", "The run and its folder."},
    {"model", "The network and its size."},
    {"data", "What is read, and how it becomes sequences."},
    {"train", "Batch arithmetic and length."},
    {"optimizer", "How weights are updated."},
    {"schedule",
     "The learning rate over time. Steps tick once per optimizer step on any number of ranks."},
    {"precision", "Number formats. Weights are always kept in fp32 as well."},
    {"parallel", "How the model's state is spread over ranks."},
    {"offload", "Slower memory for parts of the state."},
    {"checkpoint", "When and how the run is saved."},
    {"log", "What the run says about itself."},
    {"stop", "When the run saves and stops early."},
};

}  // namespace

std::span<const Field> fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

std::span<const SourceField> source_fields() {
  static const std::vector<SourceField> table = make_source_fields();
  return table;
}

std::span<const GroupField> group_fields() {
  static const std::vector<GroupField> table = make_group_fields();
  return table;
}

std::span<const LaterKey> later_keys() { return kLaterKeys; }
std::span<const Section> sections() { return kSections; }

const Field* find_field(std::string_view path) {
  const auto all = fields();
  const auto found = std::ranges::find(all, path, &Field::path);
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> field_paths() {
  std::vector<std::string> paths;
  for (const Field& field : fields()) paths.emplace_back(field.path);
  return paths;
}

}  // namespace trireme::config
