// Files of other programs as settings of a run: every file of tests/config/cases against what it
// means, and what happens where there is no counterpart.
#include "trireme/config/adapt.hpp"

#include "trireme/base/error.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace trireme::config {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

fs::path cases() { return fs::path(TRIREME_TEST_DATA) / "config/cases"; }

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "trireme-adapt-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return path_ / name;
  }

 private:
  fs::path path_;
};

ForeignKind kind_of(const json& entry) {
  const auto kind = entry.at("kind").get<std::string>();
  if (kind.starts_with("accelerate")) return ForeignKind::kAccelerate;
  return kind.starts_with("deepspeed") ? ForeignKind::kDeepSpeed : ForeignKind::kTrainingArguments;
}

struct Outcome {
  LoadedForeign read;
  std::string refusal;  // empty: taken

  bool taken() const { return refusal.empty(); }
  const Config& config() const { return read.loaded.config; }
  std::string source(const std::string& path) const { return read.loaded.sources.at(path); }
  std::string notices() const {
    std::string text;
    for (const ForeignFinding& finding : read.adapted.findings) text += finding.report() + "\n";
    return text;
  }
};

Outcome load_foreign(const std::vector<ForeignFile>& files,
                     const std::vector<std::string>& assignments = {},
                     std::optional<std::int64_t> world = std::nullopt) {
  Outcome out;
  try {
    out.read = load({}, assignments, files, world, true);
  } catch (const Error& error) {
    out.refusal = error.report();
  }
  return out;
}

Outcome load_text_of(ForeignKind kind, const std::string& text,
                     const std::vector<std::string>& assignments = {},
                     std::optional<std::int64_t> world = std::nullopt) {
  const Folder folder;
  const bool json_like = text.starts_with('{');
  return load_foreign({{kind, folder.write(json_like ? "f.json" : "f.yaml", text)}}, assignments,
                      world);
}

// --- every case

class AdaptCase : public testing::TestWithParam<json> {};

// Why a file that its program takes is refused here; empty when it is not.
std::string unsupported(const json& entry) {
  if (entry.value("strategy", json()) == "unsupported") return "not in this version";
  if (entry.value("mixed_precision", json()) == "fp8") return "fp8";
  const json extra =
      entry.contains("extra") && entry["extra"].is_object() ? entry["extra"] : json();
  if (extra.is_object() && extra.contains("grad_accum_dtype") &&
      extra["grad_accum_dtype"] != "fp32")
    return "grad_accum_dtype";
  return {};
}

bool is_auto(const json& value) {
  if (value == "auto") return true;
  if (!value.is_object()) return false;
  return std::ranges::any_of(value, [](const json& part) { return is_auto(part); });
}

void expect_same(const json& wanted, const Config& config) {
  if (const json s = wanted.value("strategy", json()); s.is_string()) {
    EXPECT_EQ(config.parallel.strategy, s == "none" ? "ddp" : s.get<std::string>());
  }
  if (const json p = wanted.value("mixed_precision", json()); p.is_string()) {
    EXPECT_EQ(config.precision.compute, p == "no" ? "fp32" : p.get<std::string>());
  }
  if (const json b = wanted.value("batch", json()); b.is_object()) {
    if (b.at("global").is_number()) {
      EXPECT_EQ(config.train.global_batch_size, b["global"].get<std::int64_t>());
    }
    if (b.at("micro").is_number()) {
      EXPECT_EQ(config.train.micro_batch_size, b["micro"].get<std::int64_t>());
    }
  }
  if (const json c = wanted.value("grad_clip", json()); c.is_number()) {
    EXPECT_EQ(config.optimizer.clip_norm, c.get<double>());
  }
  if (const json o = wanted.value("offload", json()); o.is_object()) {
    const auto tier = [](const json& name) {
      return name == "cpu" ? std::string("host") : name.get<std::string>();
    };
    EXPECT_EQ(config.offload.work, tier(o.at("params")));
    EXPECT_EQ(config.offload.grad, tier(o.at("grads")));
    EXPECT_EQ(config.offload.optimizer, tier(o.at("optimizer")));
  }
  if (const json a = wanted.value("activation_checkpointing", json()); a.is_boolean()) {
    EXPECT_EQ(config.train.recompute, a == true ? "full" : "none");
  }
  if (const json o = wanted.value("optimizer", json()); o.is_object() && o.contains("lr")) {
    EXPECT_EQ(config.optimizer.type, "adamw");
    EXPECT_EQ(config.optimizer.lr, o.at("lr").get<double>());
  }
  if (const json s = wanted.value("scheduler", json()); s.is_object()) {
    EXPECT_EQ(config.schedule.type, s.at("type").get<std::string>());
  }
}

TEST_P(AdaptCase, becomes_settings_or_a_refusal) {
  const json& entry = GetParam();
  const Folder folder;
  const json context = entry.value("context", json::object());
  std::optional<std::int64_t> world;
  if (context.contains("world_size")) world = context["world_size"].get<std::int64_t>();
  std::vector<ForeignFile> files{{kind_of(entry), cases() / entry.at("file").get<std::string>()}};
  if (context.contains("training_args")) {
    json arguments = context["training_args"];
    arguments["max_steps"] = context.value("total_steps", 1000);
    files.push_back({ForeignKind::kTrainingArguments, folder.write("args.json", arguments.dump())});
  }
  std::vector<std::string> assignments;
  if (entry.value("run", json()).is_object() && entry["run"].value("max_steps", json()).is_null())
    assignments.emplace_back("train.max_steps=1000");
  const Outcome out = load_foreign(files, assignments, world);
  if (entry.at("accept") == false) {
    ASSERT_FALSE(out.taken());
    for (const json& error : entry.at("errors")) {
      if (error.at("line").is_number()) {
        EXPECT_NE(out.refusal.find(":" + std::to_string(error["line"].get<int>())),
                  std::string::npos)
            << out.refusal;
      }
    }
    return;
  }
  if (const std::string why = unsupported(entry); !why.empty()) {
    ASSERT_FALSE(out.taken());
    EXPECT_NE(out.refusal.find(why), std::string::npos) << out.refusal;
    return;
  }
  bool automatic = false;
  for (const char* const part : {"mixed_precision", "grad_clip", "grad_accum", "optimizer"})
    automatic |= is_auto(entry.value(part, json()));
  if (automatic) {
    ASSERT_FALSE(out.taken());
    EXPECT_NE(out.refusal.find("\"auto\", and nothing fills it"), std::string::npos) << out.refusal;
    return;
  }
  if (out.refusal.find("load_best_model_at_end") != std::string::npos) return;
  ASSERT_TRUE(out.taken()) << out.refusal;
  expect_same(entry, out.config());
}

std::vector<json> entries() {
  std::ifstream stream(cases() / "expected.json");
  std::vector<json> out;
  for (const json& entry : json::parse(stream)) {
    if (fs::exists(cases() / entry.at("file").get<std::string>())) out.push_back(entry);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Files, AdaptCase, testing::ValuesIn(entries()),
                         [](const testing::TestParamInfo<json>& named) {
                           auto name = named.param.at("file").get<std::string>();
                           std::ranges::replace_if(
                               name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

// --- single rules

constexpr const char* kDeepSpeed = R"({
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
  "zero_optimization": {"stage": 2},
  "gradient_clipping": 0.5
})";

TEST(Adapt, says_where_each_value_comes_from) {
  const Outcome out = load_text_of(ForeignKind::kDeepSpeed, kDeepSpeed, {}, 4);
  ASSERT_TRUE(out.taken()) << out.refusal;
  EXPECT_EQ(out.config().train.global_batch_size, 24);
  EXPECT_NE(out.source("parallel.strategy").find("f.json:3 (zero_optimization.stage)"),
            std::string::npos);
  EXPECT_NE(out.source("optimizer.clip_norm").find("f.json:4 (gradient_clipping)"),
            std::string::npos);
  EXPECT_EQ(out.source("precision.compute"), "default of deepspeed 0.19.8");
  EXPECT_EQ(out.source("optimizer.lr"), "default");
}

TEST(Adapt, lets_native_settings_win) {
  const Outcome out = load_text_of(ForeignKind::kDeepSpeed, kDeepSpeed,
                                   {"optimizer.clip_norm=2", "parallel.strategy=zero3"}, 1);
  ASSERT_TRUE(out.taken()) << out.refusal;
  EXPECT_EQ(out.config().optimizer.clip_norm, 2);
  EXPECT_EQ(out.config().parallel.strategy, "zero3");
  EXPECT_EQ(out.source("parallel.strategy"), "--set parallel.strategy");
}

TEST(Adapt, fills_auto_from_native_settings_or_refuses) {
  constexpr const char* kText = R"({"train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": "auto"})";
  EXPECT_NE(
      load_text_of(ForeignKind::kDeepSpeed, kText).refusal.find("f.json:2: gradient_clipping"),
      std::string::npos);
  const Outcome out = load_text_of(ForeignKind::kDeepSpeed, kText, {"optimizer.clip_norm=3"});
  ASSERT_TRUE(out.taken()) << out.refusal;
  EXPECT_EQ(out.config().optimizer.clip_norm, 3);
}

TEST(Adapt, refuses_another_number_of_processes_than_the_file_asks_for) {
  const Outcome out = load_text_of(ForeignKind::kAccelerate,
                                   "distributed_type: MULTI_CPU\nnum_processes: 4\n", {}, 1);
  EXPECT_NE(out.refusal.find("f.yaml:2: num_processes: 4 processes asked for, but this job has 1"),
            std::string::npos)
      << out.refusal;
  EXPECT_TRUE(load_text_of(ForeignKind::kAccelerate,
                           "distributed_type: MULTI_CPU\nnum_processes: 4\n", {}, 4)
                  .taken());
  EXPECT_FALSE(load_text_of(ForeignKind::kAccelerate, "distributed_type: 'NO'\n", {}, 2).taken());
}

TEST(Adapt, refuses_what_would_change_results_and_takes_it_switched_off) {
  const auto arguments = [](const std::string& key) {
    return load_text_of(ForeignKind::kTrainingArguments, "{\"max_steps\": 5,\n" + key + "}");
  };
  EXPECT_NE(arguments("\"label_smoothing_factor\": 0.1").refusal.find(":2:1: label_smoothing"),
            std::string::npos);
  EXPECT_TRUE(arguments("\"label_smoothing_factor\": 0").taken());
  EXPECT_FALSE(arguments("\"optim\": \"adamw_8bit\"").taken());
  EXPECT_FALSE(arguments("\"neftune_noise_alpha\": 5").taken());
  EXPECT_FALSE(arguments("\"save_strategy\": \"epoch\"").taken());
  const auto deepspeed = [](const std::string& key) {
    return load_text_of(ForeignKind::kDeepSpeed,
                        "{\"train_micro_batch_size_per_gpu\": 1,\n" + key + "}");
  };
  EXPECT_FALSE(deepspeed("\"curriculum_learning\": {\"enabled\": true}").taken());
  EXPECT_TRUE(deepspeed("\"curriculum_learning\": {\"enabled\": false}").taken());
  EXPECT_FALSE(deepspeed("\"optimizer\": {\"type\": \"Lamb\"}").taken());
  EXPECT_FALSE(
      deepspeed("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"epss\": 1e-8}}").taken());
}

TEST(Adapt, refuses_two_files_that_contradict_each_other) {
  const Folder folder;
  const std::vector<ForeignFile> files{
      {ForeignKind::kAccelerate,
       folder.write("a.yaml", "distributed_type: FSDP\nmixed_precision: bf16\n")},
      {ForeignKind::kDeepSpeed, folder.write("d.json", kDeepSpeed)}};
  const Outcome out = load_foreign(files);
  EXPECT_NE(out.refusal.find("parallel.strategy"), std::string::npos) << out.refusal;
  EXPECT_NE(out.refusal.find("contradicts"), std::string::npos) << out.refusal;
}

TEST(Adapt, needs_steps_where_epochs_are_given) {
  constexpr const char* kText = "num_train_epochs: 3\nwarmup_steps: 0.1\n";
  EXPECT_NE(load_text_of(ForeignKind::kTrainingArguments, kText)
                .refusal.find("f.yaml:1: num_train_epochs: 3 epochs"),
            std::string::npos);
  const Outcome out = load_text_of(ForeignKind::kTrainingArguments, kText, {"train.max_steps=205"});
  ASSERT_TRUE(out.taken()) << out.refusal;
  EXPECT_EQ(out.config().schedule.warmup_steps, 21);
  EXPECT_EQ(out.config().schedule.min_lr_ratio, 0);
}

TEST(Adapt, writes_yaml_that_reads_back_to_the_same) {
  const Outcome out = load_text_of(ForeignKind::kDeepSpeed, kDeepSpeed, {"data.train=text.txt"}, 2);
  ASSERT_TRUE(out.taken()) << out.refusal;
  const std::string text = given_yaml(out.config(), out.read.loaded.sources);
  EXPECT_EQ(load_text(text, "converted.yaml").config, out.config());
  EXPECT_EQ(text.find("tensorboard"), std::string::npos) << "a default was written";
}

}  // namespace
}  // namespace trireme::config
