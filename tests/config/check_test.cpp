#include "trireme/config/fields.hpp"
#include "trireme/config/load.hpp"

#include "problems.hpp"
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::config {
namespace {

Config valid() {
  Config config;
  config.data.train = {{"text.txt", "text", 1.0}};
  return config;
}

TEST(ConfigCheck, finds_nothing_wrong_with_a_valid_config) { EXPECT_TRUE(check(valid()).empty()); }

TEST(ConfigCheck, names_each_combination_that_cannot_work) {
  const struct {
    const char* yaml;
    const char* problem;
  } cases[] = {
      {"model: {heads: 7}", "x.yaml:1: model.heads: 7 does not divide model.hidden = 384"},
      {"model: {type: llama, hidden: 15, heads: 5}",
       "model.heads: 5 heads of model.hidden = 15 are 3 wide each; the rotary embedding turns "
       "pairs"},
      {"model: {type: llama, kv_heads: 4}", "model.kv_heads: 4 does not divide model.heads = 6"},
      {"model: {kv_heads: 2}", "model.kv_heads: has no effect with model.type: gpt2"},
      {"model: {rope_theta: 5e5}", "model.rope_theta: has no effect with model.type: gpt2"},
      {"model: {vocab: 100}",
       "model.vocab: 100 is too small for data.tokenizer: bytes; set 256 or more"},
      {"data: {sequence_length: 512}",
       "data.sequence_length: 512 is longer than model.context = 256"},
      {"data: {eval: e.txt, eval_fraction: 0.2}",
       "data.eval_fraction: has no effect because data.eval names"},
      {"data: {eval_fraction: 0}", "train.eval_every: nothing to evaluate on"},
      {"train: {global_batch_size: 10}",
       "10 is not a multiple of train.micro_batch_size = 4; set 8 or 12"},
      {"train: {global_batch_size: 2}", "2 is not a multiple of train.micro_batch_size = 4; set 4"},
      {"optimizer: {betas: [0.9]}",
       "optimizer.betas: needs two numbers such as [0.9, 0.95], has 1"},
      {"train: {max_steps: 10}",
       "schedule.warmup_steps: 20 is longer than the schedule (train.max_steps = 10)"},
      {"schedule: {total_steps: 10}", "longer than the schedule (schedule.total_steps = 10)"},
      {"schedule: {type: constant, min_lr_ratio: 0.5}",
       "schedule.min_lr_ratio: has no effect with schedule.type: constant"},
      {"schedule: {type: linear, hold: false}", "schedule.hold has no effect with linear"},
      {"schedule: {type: one_cycle, warmup_steps: 5}", "one_cycle has no warm-up"},
      {"{schedule: {type: greedy}, train: {eval_every: 0}}",
       "schedule.type: greedy follows the evaluation loss; set train.eval_every"},
      {"optimizer: {type: sgd, amsgrad: true, eps: 1e-6}",
       "optimizer.type: sgd does not use optimizer.eps, optimizer.amsgrad"},
      {"optimizer: {momentum: 0.9}", "adamw does not use optimizer.momentum"},
      {"optimizer: {type: sgd, nesterov: true}",
       "optimizer.nesterov: needs optimizer.momentum above 0"},
      {"optimizer: {type: sgd, dampening: 0.5}",
       "optimizer.dampening: has no effect without optimizer.momentum"},
      {"optimizer: {type: adafactor, relative_step: true}",
       "optimizer.relative_step: takes the rate from the number of the update alone"},
      {"optimizer: {type: adafactor, warmup_init: true}",
       "optimizer.warmup_init: has no effect without optimizer.relative_step"},
      {"optimizer: {groups: [{match: bias, betas: [0.9]}]}",
       "optimizer.groups: entry 0: betas needs two numbers, has 1"},
      {"optimizer: {groups: {match: '', eps: 2}}", "optimizer.groups.0.match: must not be empty"},
      {"optimizer: {groups: {match: '', eps: 2}}", "optimizer.groups.0.eps: 2 is out of range"},
      {"optimizer: {type: sgd}\nprecision: {moments: bf16}",
       "precision.moments: sgd without optimizer.momentum keeps no moments"},
      {"precision: {loss_scale: static}", "'static' is neither dynamic nor a number"},
      {"precision: {loss_scale: 128}", "precision.loss_scale: only fp16 needs a loss scale"},
      {"precision: {min_scale: 2}", "min_scale have no effect without precision.hysteresis"},
      {"precision: {hysteresis: 2}", "settings of the dynamic loss scale have no effect here"},
  };
  for (const auto& [yaml, problem] : cases) expect_contains(problems_with_data(yaml), problem);
  expect_contains(problems("run: {seed: 1}"),
                  "default: data.train: nothing to train on; set data.train: [{path: FILE}]");
}

TEST(ConfigCheck, refuses_what_this_version_does_not_have_and_says_what_to_set) {
  const struct {
    const char* yaml;
    const char* problem;
  } cases[] = {
      {"parallel: {shard_size: 4}", "parallel.shard_size: only hsdp has groups of ranks"},
      {"parallel: {unused_parameters: warn}", "parallel.unused_parameters"},
      {"parallel: {strategy: zero4}", "parallel.strategy: unknown value 'zero4'"},
      {"parallel: {units: ''}", "parallel.units: must not be empty"},
      {"parallel: {strategy: ddp, reshard_after_forward: false}",
       "has no effect with parallel.strategy: ddp, which keeps weights whole; set true"},
      {"precision: {compute: fp8}", "precision.compute: unknown value 'fp8'"},
      {"precision: {reduce: fp16}", "precision.reduce: adding gradients in fp16"},
      {"offload: {work: nvme}", "offload.nvme_path: must name a folder on a local disk"},
      {"parallel: {strategy: zero2}\noffload: {work: nvme, nvme_path: /nvme}",
       "offload.work: nvme needs weights in shards, which zero2 has not"},
      {"parallel: {strategy: zero1}\noffload: {grad: nvme, nvme_path: /nvme}",
       "offload.grad: nvme needs gradients in shards, which zero1 has not"},
      {"offload: {nvme_path: /nvme}",
       "offload.nvme_path: has no effect, because nothing is offloaded"},
      {"checkpoint: {async: true}",
       "checkpoint.async: saving while training is not in this version; set false"},
      {"checkpoint: {transfer: collective}",
       "checkpoint.transfer: has no effect on the direct driver"},
      {"model: {from: gpt2}", "model.from: models from elsewhere are not in this version"},
      {"model: {plugin: libmine.so, layers: 3}", "have no effect with model.plugin"},
      {"model: {args: {width: 3}}", "model.args has no effect without model.plugin"},
      {"model: {plugin: libmine.so}\ntrain: {recompute: full}", "has no effect on a plug-in"},
  };
  for (const auto& [yaml, problem] : cases) expect_contains(problems_with_data(yaml), problem);
}

TEST(ConfigCheck, suggests_the_nearest_word) {
  expect_contains(problems_with_data("parallel: {strategy: zero-3}"),
                  "unknown value 'zero-3' (did you mean 'zero3'?)");
  expect_contains(problems_with_data("stop: {signals: [SIGTERM]}"), "did you mean 'TERM'?");
  expect_contains(problems_with_data("stop: {signals: [TERM, TERM]}"),
                  "stop.signals: names 'TERM' twice");
  expect_contains(problems("data: {train: [{path: a, format: parquet}]}"),
                  "data.train.0.format: Debian 12 has no library that reads Parquet");
  expect_contains(problems("data: {train: [{path: a, format: jsonn}]}"), "did you mean 'jsonl'?");
  expect_contains(problems("data: {train: [{path: a, key: body}]}"),
                  "key: body of a has no effect with format: text");
  EXPECT_EQ(problems("data: {train: [{path: a, format: jsonl, key: body}], tokenizer: bytes}"), "");
  EXPECT_EQ(problems("data: {train: [{path: a, format: nanogpt}], tokenizer: 50257}"), "");
}

TEST(ConfigCheck, refuses_values_out_of_range) {
  const struct {
    const char* yaml;
    const char* problem;
  } cases[] = {
      {"run: {threads: 0}", "run.threads: 0 is out of range; allowed: 1 to 4096 threads"},
      {"run: {timeout: 0}",
       "run.timeout: 0 is out of range; allowed: above 0, at most 604800 seconds"},
      {"run: {seed: -1}", "run.seed: must be a whole number, 0 or more, not '-1'"},
      {"run: {dir: ''}", "run.dir: must not be empty"},
      {"model: {layers: -2}", "model.layers: -2 is out of range"},
      {"model: {hidden: 0}", "model.hidden: 0 is out of range"},
      {"model: {heads: 0}", "model.heads: 0 is out of range"},
      {"model: {context: -1}", "model.context: -1 is out of range"},
      {"data: {eval_fraction: 1}",
       "data.eval_fraction: 1 is out of range; allowed: at least 0 and below 1 fraction"},
      {"train: {micro_batch_size: 0}", "train.micro_batch_size: 0 is out of range"},
      {"optimizer: {lr: 0}", "optimizer.lr: 0 is out of range; allowed: above 0, at most 1000"},
      {"optimizer: {lr: -1e-3}", "optimizer.lr: -0.001 is out of range"},
      {"optimizer: {betas: [0.9, 1.0]}",
       "optimizer.betas: 1 is out of range; allowed: at least 0 and below 1"},
      {"optimizer: {eps: 0}", "optimizer.eps: 0 is out of range"},
      {"optimizer: {clip_norm: -1}",
       "optimizer.clip_norm: -1 is out of range; allowed: at least 0"},
      {"schedule: {min_lr_ratio: 1.5}",
       "schedule.min_lr_ratio: 1.5 is out of range; allowed: 0 to 1 fraction"},
      {"log: {every: 0}", "log.every: 0 is out of range"},
      {"stop: {before_deadline: -5s}", "stop.before_deadline: -5 is out of range"},
  };
  for (const auto& [yaml, problem] : cases) expect_contains(problems_with_data(yaml), problem);
  expect_contains(problems("data: {train: [{path: a, weight: 0}]}"),
                  "data.train.0.weight: 0 is out of range");
}

TEST(ConfigCheck, says_nothing_that_only_follows_from_an_unreadable_value) {
  const std::string text = problems_with_data("model: {heads: many, hidden: 385}\n");
  expect_contains(text, "a problem:");
  EXPECT_EQ(text.find("does not divide"), std::string::npos) << text;
}

TEST(ConfigCheck, checks_a_config_made_in_code) {
  Config config = valid();
  config.optimizer.lr = std::numeric_limits<double>::quiet_NaN();
  config.parallel.strategy = "zero4";
  config.run.name = "a/b";
  config.data.train[0].path = "line\nbreak";
  const std::vector<std::string> found = check(config);
  ASSERT_EQ(found.size(), 4U);
  expect_contains(found[0], "run.name: 'a/b' is not a plain folder name");
  expect_contains(found[1], "optimizer.lr: must be a finite number, not nan");
  expect_contains(found[2], "parallel.strategy: unknown value 'zero4'");
  expect_contains(found[3], "data.train.0.path: 'line\\x0abreak' has control characters");
  EXPECT_THROW(require_valid(config), Error);
}

// Every number has a range that refuses something, every word a list of choices or a form: no field
// is unchecked.
TEST(ConfigCheck, leaves_no_number_without_a_range) {
  Config config;
  for (const Field& field : fields()) {
    const Slot slot = field.slot(config);
    const bool number = std::holds_alternative<double*>(slot) ||
                        std::holds_alternative<std::int64_t*>(slot) ||
                        std::holds_alternative<std::vector<double>*>(slot);
    EXPECT_TRUE(!number || std::isfinite(field.range.min)) << field.path;
    const bool word = std::holds_alternative<std::string*>(slot);
    EXPECT_TRUE(!word || !field.choices.empty() || field.form != Form::kPlain) << field.path;
    EXPECT_FALSE(field.help.empty()) << field.path;
  }
}

}  // namespace
}  // namespace trireme::config
