// How a Trainer trains: transformers' TrainingArguments, under their names and with their defaults,
// as far as they have a meaning here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct TrainingArguments {
  std::filesystem::path output_dir = "trainer_output";
  std::int64_t per_device_train_batch_size = 8;  // of a rank
  std::int64_t per_device_eval_batch_size = 8;
  double num_train_epochs = 3;  // may be a fraction
  std::int64_t max_steps = -1;  // above 0: instead of epochs
  std::int64_t gradient_accumulation_steps = 1;
  std::string optim = "adamw_torch";  // adamw_torch, adamw_torch_fused, sgd, adagrad, lion,
                                      // adafactor
  double learning_rate = 5e-5;
  double weight_decay = 0;  // not of parameters with fewer than two dimensions
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1;                  // 0: no bound
  std::string lr_scheduler_type = "linear";  // those of optim/schedule.hpp
  std::map<std::string, std::string> lr_scheduler_kwargs = {};
  double warmup_steps = 0;  // below 1: a part of all steps
  bool bf16 = false;
  bool fp16 = false;
  // steps | epoch | no; counts below 1 are parts of all steps
  std::string logging_strategy = "steps";
  double logging_steps = 500;
  bool logging_first_step = false;
  std::string eval_strategy = "no";
  double eval_steps = 0;  // 0: logging_steps
  double eval_delay = 0;  // steps, or epochs
  bool eval_on_start = false;
  std::string save_strategy = "steps";  // and best
  double save_steps = 500;
  int save_total_limit = 0;  // complete checkpoints to keep beside the best; 0: all
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = {};      // empty: loss
  std::optional<bool> greater_is_better = {};  // unset: unless the metric's name ends in loss
  std::string resume_from_checkpoint = {};     // a path, or true: the newest in output_dir, if any
  std::uint64_t seed = 42;
  std::optional<std::uint64_t> data_seed = {};
  int dataloader_num_workers = 0;
  int dataloader_prefetch_factor = 2;
  bool dataloader_drop_last = false;
  std::vector<std::string> report_to = {};  // jsonl, tensorboard
  std::string run_name = "run";
  // Not of transformers: parallel.strategy.
  std::string strategy = "ddp";
};

// Returns the arguments in a JSON file with transformers' keys. Throws Config with all problems:
// unknown keys with the nearest, values of the wrong type, and keys that have no meaning here
// unless they have the value that changes nothing.
TrainingArguments load_training_arguments(const std::filesystem::path& file);
// Throws Config, with all problems.
void check(const TrainingArguments& arguments);

}  // namespace trireme
