// Every setting of a run as plain values. The field table (config/fields.hpp) gives each its unit,
// default, range and help, and makes the YAML reader, --set, --help, the reference page and the
// resolved config.yaml from one list.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::config {

struct Run {
  std::string name = "demo";
  std::string dir = "runs";
  std::uint64_t seed = 42;
  bool reproducible = true;
  std::int64_t threads =
      1;  // per rank, for matrix products; part of what reproducible results depend on
  std::string device = "cpu";  // cpu | cuda
  double timeout = 600;        // seconds that any wait for another rank may take

  bool operator==(const Run&) const = default;
};

struct Model {
  std::string type = "gpt2";  // gpt2 | llama
  std::int64_t layers = 6;
  std::int64_t hidden = 384;
  std::int64_t heads = 6;
  std::int64_t kv_heads = 0;  // llama: grouped-query attention; 0 = heads
  std::int64_t context = 256;
  std::int64_t vocab = 0;  // 0 = the tokenizer's
  std::int64_t intermediate =
      0;  // width of the MLP; 0 = 4 x hidden (gpt2), 8/3 x hidden rounded up to 32 (llama)
  bool tied_head = true;
  double norm_eps = 1e-5;
  double rope_theta = 10000;  // llama
  double init_std = 0.02;
  std::string plugin = {};  // a shared library with the model, instead of the sizes above
  std::map<std::string, std::string> args = {};
  std::vector<std::string> frozen = {};  // regular expressions on parameter names

  bool operator==(const Model&) const = default;
};

struct DataSource {
  std::string path;
  std::string format = "text";
  double weight = 1.0;
  std::string key = "text";  // jsonl: of the text in each line

  bool operator==(const DataSource&) const = default;
};

struct Data {
  std::vector<DataSource> train;
  std::vector<DataSource> eval;  // empty: the last eval_fraction of train is held out
  double eval_fraction = 0.01;
  std::string tokenizer = "bytes";  // or a number: the vocabulary of files that hold tokens
  std::int64_t sequence_length = 256;
  bool shuffle = true;

  bool operator==(const Data&) const = default;
};

struct Train {
  std::int64_t global_batch_size = 16;  // sequences per optimizer step
  std::int64_t micro_batch_size = 4;    // sequences per forward pass
  std::int64_t max_steps = 200;
  std::int64_t eval_every = 100;   // steps; 0 = never
  std::int64_t eval_batches = 8;   // micro-batches per evaluation; 0 = the whole evaluation set
  std::string recompute = "none";  // none | attention | full

  bool operator==(const Train&) const = default;
};

// Settings for the parameters whose name matches; what is not set is the optimizer's.
struct ParameterGroup {
  std::string match;
  std::optional<double> lr_multiplier;
  std::vector<double> betas;
  std::optional<double> eps;
  std::optional<double> weight_decay;
  std::optional<double> clip_norm;

  bool operator==(const ParameterGroup&) const = default;
};

struct Optimizer {
  std::string type = "adamw";
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_all =
      false;  // false: no decay on norms and biases (parameters with fewer than two dimensions)
  double clip_norm = 1.0;  // 0 = no clipping
  double clip_value = 0;   // 0 = no clipping
  bool maximize = false;
  bool amsgrad = false;                               // adamw, adam
  double momentum = 0;                                // sgd, adafactor
  double dampening = 0;                               // sgd
  bool nesterov = false;                              // sgd
  double lr_decay = 0;                                // adagrad
  double initial_accumulator = 0;                     // adagrad
  std::vector<double> adafactor_eps = {1e-30, 1e-3};  // adafactor, as all below
  double clip_threshold = 1;
  double decay_rate = -0.8;
  bool scale_parameter = false;
  bool relative_step = false;
  bool warmup_init = false;
  std::vector<ParameterGroup> groups = {};  // the first that matches holds

  bool operator==(const Optimizer&) const = default;
};

struct Schedule {
  std::string type = "cosine";
  std::int64_t warmup_steps = 20;
  std::int64_t total_steps = 0;  // horizon; 0 = train.max_steps
  double min_lr_ratio = 0.1;
  bool hold = true;                                 // behind the horizon the rate stays
  std::map<std::string, std::string> options = {};  // of the type

  bool operator==(const Schedule&) const = default;
};

struct Precision {
  std::string compute = "bf16";  // bf16 | fp16 | fp32
  std::string reduce = "fp32";
  std::vector<std::string> keep_fp32 = {};  // regular expressions on parameter names
  std::string moments = "fp32";             // fp32 | bf16
  std::string loss_scale = "dynamic";       // or a number; of fp16, as all below
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  std::int64_t hysteresis = 1;  // above 1: DeepSpeed's rule
  bool consecutive_hysteresis = false;
  double min_scale = 1;
  std::int64_t max_skips = 10;  // steps without an update in a row that end the run, of any type

  bool operator==(const Precision&) const = default;
};

struct Parallel {
  std::string strategy = "zero3";  // ddp | zero1 | zero2 | zero3 | hsdp
  std::string units = "auto";      // auto | none | size:N | class names
  std::int64_t shard_size = 0;     // hsdp only; 0 = unset
  bool reshard_after_forward = true;
  std::vector<std::string> ignored = {};   // regular expressions on module paths
  std::string unused_parameters = "zero";  // zero | error

  bool operator==(const Parallel&) const = default;
};

struct Offload {
  std::string work = "none";
  std::string grad = "none";
  std::string optimizer = "none";
  std::string nvme_path;

  bool operator==(const Offload&) const = default;
};

struct Checkpoint {
  std::int64_t every = 100;  // steps; 0 = only at the end
  std::int64_t keep = 3;     // 0 = all
  bool async = false;
  std::string driver = "direct";         // direct | mpiio
  std::string files = "single";          // single | node
  std::string transfer = "independent";  // of mpiio: independent | collective

  bool operator==(const Checkpoint&) const = default;
};

struct Log {
  std::int64_t every = 10;  // steps between progress lines; metrics.jsonl has every step
  bool tensorboard = true;

  bool operator==(const Log&) const = default;
};

struct Stop {
  double before_deadline = 120;  // seconds before the job's time limit
  std::vector<std::string> signals = {"USR1", "TERM"};

  bool operator==(const Stop&) const = default;
};

struct Config {
  Run run;
  Model model;
  Data data;
  Train train;
  Optimizer optimizer;
  Schedule schedule;
  Precision precision;
  Parallel parallel;
  Offload offload;
  Checkpoint checkpoint;
  Log log;
  Stop stop;

  bool operator==(const Config&) const = default;
};

}  // namespace trireme::config
