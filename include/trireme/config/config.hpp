// Every setting of a run as plain values. The field table (config/fields.hpp) gives each its unit,
// default, range and help, and makes the YAML reader, --set, --help, the reference page and the
// resolved config.yaml from one list.
#pragma once

#include <cstdint>
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
  double timeout = 600;  // seconds that any wait for another rank may take

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

  bool operator==(const Model&) const = default;
};

struct DataSource {
  std::string path;
  std::string format = "text";
  double weight = 1.0;

  bool operator==(const DataSource&) const = default;
};

struct Data {
  std::vector<DataSource> train;
  std::vector<DataSource> eval;  // empty: the last eval_fraction of train is held out
  double eval_fraction = 0.01;
  std::string tokenizer = "bytes";
  std::int64_t sequence_length = 256;
  bool shuffle = true;

  bool operator==(const Data&) const = default;
};

struct Train {
  std::int64_t global_batch_size = 16;  // sequences per optimizer step
  std::int64_t micro_batch_size = 4;    // sequences per forward pass
  std::int64_t max_steps = 200;
  std::int64_t eval_every = 100;  // steps; 0 = never
  std::int64_t eval_batches = 8;  // micro-batches per evaluation; 0 = the whole evaluation set

  bool operator==(const Train&) const = default;
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

  bool operator==(const Optimizer&) const = default;
};

struct Schedule {
  std::string type = "cosine";  // constant | linear | cosine
  std::int64_t warmup_steps = 20;
  std::int64_t total_steps = 0;  // horizon; 0 = train.max_steps
  double min_lr_ratio = 0.1;

  bool operator==(const Schedule&) const = default;
};

struct Precision {
  std::string compute = "bf16";  // bf16 | fp32
  std::string reduce = "fp32";

  bool operator==(const Precision&) const = default;
};

struct Parallel {
  std::string strategy = "zero3";  // ddp | zero3
  std::string units = "auto";      // auto = repeated blocks
  std::int64_t shard_size = 0;     // hsdp only; 0 = unset
  bool reshard_after_forward = true;

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
  std::string driver = "direct";

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
