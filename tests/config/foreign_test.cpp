// Files of other programs as people use them, each with what it means: tests/config/cases. The
// fields are compared as far as the expectation names them; findings by path and line.
#include "trireme/config/foreign.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

namespace trireme::config {
namespace {

using nlohmann::json;

std::filesystem::path cases() { return std::filesystem::path(TRIREME_TEST_DATA) / "config/cases"; }

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

Value value_of(const json& node) {
  if (node.is_boolean()) return node.get<bool>();
  if (node.is_number_integer()) return node.get<std::int64_t>();
  if (node.is_number()) return node.get<double>();
  if (node.is_string()) return node.get<std::string>();
  Value map;
  for (const auto& [key, value] : node.items()) map.set(key, value_of(value));
  return map;
}

ForeignContext context_of(const json& entry) {
  ForeignContext context;
  const json given = entry.value("context", json::object());
  if (given.contains("world_size")) context.world_size = given["world_size"].get<std::int64_t>();
  if (given.contains("hidden_size")) context.hidden_size = given["hidden_size"].get<std::int64_t>();
  if (given.contains("total_steps")) context.total_steps = given["total_steps"].get<std::int64_t>();
  if (given.contains("training_args")) context.training_args = value_of(given["training_args"]);
  return context;
}

ForeignKind kind_of(const json& entry) {
  const auto kind = entry.at("kind").get<std::string>();
  if (kind.starts_with("accelerate")) return ForeignKind::kAccelerate;
  return kind.starts_with("deepspeed") ? ForeignKind::kDeepSpeed : ForeignKind::kTrainingArguments;
}

std::string place(const json& path, const json& line) {
  return (path.is_string() ? path.get<std::string>() : "-") + ":" +
         (line.is_number() && line.get<int>() > 0 ? std::to_string(line.get<int>()) : "-");
}

std::multiset<std::string> expected_places(const json& entry, const char* name, const char* key) {
  std::multiset<std::string> places;
  for (const json& finding : entry.value(name, json::array()))
    places.insert(place(finding.at(key), finding.at("line")));
  return places;
}

std::multiset<std::string> found_places(const Foreign& found, Severity severity) {
  std::multiset<std::string> places;
  for (const ForeignFinding& finding : found.findings) {
    if (finding.severity != severity) continue;
    places.insert(place(finding.path.empty() ? json() : json(finding.path), finding.line));
  }
  return places;
}

std::string reports(const Foreign& found) {
  std::string text;
  for (const ForeignFinding& finding : found.findings) text += finding.report() + "\n";
  return text;
}

// The message must carry the suggestion: its first word at least, since wording is free.
void expect_suggestions(const json& entry, const Foreign& found) {
  for (const json& error : entry.value("errors", json::array())) {
    if (!error.at("suggest").is_string()) continue;
    const auto wanted = error.at("suggest").get<std::string>();
    for (const ForeignFinding& finding : found.findings) {
      if (finding.severity != Severity::kError || error.at("path") != finding.path) continue;
      EXPECT_FALSE(finding.suggest.empty()) << finding.report();
      const std::string word = wanted.substr(0, wanted.find_first_of(" ,;"));
      if (error.at("why").get<std::string>().find("aliases") == std::string::npos) {
        EXPECT_NE(finding.suggest.find(word), std::string::npos)
            << finding.report() << "\nwanted: " << wanted;
      }
    }
  }
}

void expect_origins(const json& entry, const json& found) {
  if (!entry.contains("origin")) return;
  for (const auto& [name, wanted] : entry["origin"].items()) {
    ASSERT_TRUE(found["origin"].contains(name)) << "no origin of " << name;
    const json& origin = found["origin"][name];
    for (const char* const part : {"key", "line", "auto"}) {
      if (!wanted.contains(part)) continue;
      EXPECT_EQ(origin.value(part, json()), wanted[part]) << name;
    }
    if (wanted.contains("default")) {
      EXPECT_EQ(origin.value("default", ""), wanted["default"]) << name;
    }
    if (wanted.contains("file")) {
      EXPECT_EQ(origin.value("file", ""), wanted["file"]) << name;
    }
  }
}

void expect_meaning(const json& entry, const json& found) {
  const std::set<std::string> others{"file",   "kind",     "context", "unknown_keys", "deprecated",
                                     "errors", "warnings", "origin",  "limits",       "accept"};
  for (const auto& [name, wanted] : entry.items()) {
    if (others.contains(name)) continue;
    EXPECT_EQ(found.value(name, json()), wanted) << name;
  }
}

class ForeignCase : public testing::TestWithParam<json> {};

TEST_P(ForeignCase, means_what_its_program_takes_it_for) {
  const json& entry = GetParam();
  const auto file = cases() / entry.at("file").get<std::string>();
  const Foreign found = read_foreign(kind_of(entry), file, context_of(entry));
  const std::string all = reports(found);
  EXPECT_EQ(found.accepted(), entry.at("accept").get<bool>()) << all;
  EXPECT_EQ(found_places(found, Severity::kError), expected_places(entry, "errors", "path")) << all;
  EXPECT_EQ(found_places(found, Severity::kWarning), expected_places(entry, "warnings", "path"))
      << all;
  EXPECT_EQ(found_places(found, Severity::kDeprecated), expected_places(entry, "deprecated", "key"))
      << all;
  expect_suggestions(entry, found);
  const json parsed = json::parse(found.json());
  expect_meaning(entry, parsed);
  expect_origins(entry, parsed);
}

std::vector<json> entries() {
  std::vector<json> out;
  for (const json& entry : json::parse(text_of(cases() / "expected.json"))) {
    if (std::filesystem::exists(cases() / entry.at("file").get<std::string>()))
      out.push_back(entry);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Files, ForeignCase, testing::ValuesIn(entries()),
                         [](const testing::TestParamInfo<json>& named) {
                           auto name = named.param.at("file").get<std::string>();
                           std::ranges::replace_if(
                               name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

Foreign accelerate(std::string_view text) {
  return read_foreign_text(ForeignKind::kAccelerate, text, "a.yaml");
}

TEST(Foreign, cuts_off_what_is_nested_too_deep) {
  for (const bool yaml : {false, true}) {
    std::string deep =
        yaml ? "zero_optimization:\n  leaf_module: " : R"({"zero_optimization": {"leaf_module": )";
    for (int i = 0; i < 150000; ++i) deep += yaml ? "[" : "{\"a\":";
    if (!yaml) deep += "1";
    for (int i = 0; i < 150000; ++i) deep += yaml ? "]" : "}";
    if (!yaml) deep += "}}";
    const auto start = std::chrono::steady_clock::now();
    const Foreign found = read_foreign_text(ForeignKind::kDeepSpeed, deep, "deep");
    EXPECT_FALSE(found.accepted());
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    if (!yaml) {
      EXPECT_EQ(found.findings.front().path, "zero_optimization.leaf_module");
    }
    EXPECT_NE(reports(found).find("deep"), std::string::npos) << reports(found);
  }
}

TEST(Foreign, refuses_what_is_no_text) {
  EXPECT_NE(reports(accelerate("distributed_type: \xff\xfe\n")).find("a.yaml:1:19: byte 0xff"),
            std::string::npos);
  EXPECT_FALSE(accelerate("").accepted());
  EXPECT_FALSE(accelerate("- a\n- b\n").accepted());
  EXPECT_FALSE(accelerate("{").accepted());
  EXPECT_FALSE(accelerate(std::string(2 << 20, 'a')).accepted());
}

TEST(Foreign, says_both_lines_of_a_key_given_twice_in_json) {
  const Foreign found = read_foreign_text(
      ForeignKind::kDeepSpeed,
      "{\"train_micro_batch_size_per_gpu\": 1,\n\"zero_optimization\": {\"stage\": 1,\n"
      "\"stage\": 2}}",
      "d.json", {});
  EXPECT_NE(reports(found).find("d.json:3:1: zero_optimization.stage: already given on line 2"),
            std::string::npos)
      << reports(found);
  EXPECT_TRUE(found.meaning.at("strategy").null());
}

TEST(Foreign, expands_a_modest_alias) {
  const Foreign found =
      accelerate("distributed_type: MULTI_GPU\nnum_machines: &n 2\nnum_processes: *n\n");
  EXPECT_TRUE(found.accepted()) << reports(found);
  EXPECT_EQ(found.meaning.at("num_processes").integer(), 2);
}

TEST(Foreign, takes_what_two_yamls_read_differently_by_the_type_of_its_key) {
  const Foreign found = accelerate(
      "distributed_type: NO\nnum_processes: 0x1\nuse_cpu: yes\nmixed_precision: 'bf16'\n"
      "main_process_port: '29500'\n");
  EXPECT_TRUE(found.accepted()) << reports(found);
  EXPECT_TRUE(found.meaning.at("strategy").is("none"));
  const auto warned = found_places(found, Severity::kWarning);
  EXPECT_TRUE(warned.contains("distributed_type:1")) << reports(found);
  EXPECT_TRUE(warned.contains("use_cpu:3")) << reports(found);
  EXPECT_TRUE(warned.contains("main_process_port:5")) << reports(found);
}

// Values that the files above do not have.
TEST(Foreign, reads_the_other_values_of_fsdp) {
  const struct {
    const char* keys;
    const char* part;
    const char* meaning;  // JSON; empty: refused
  } wanted[] = {
      {"fsdp_backward_prefetch: BACKWARD_POST", "prefetch",
       R"({"backward": "post", "forward": false})"},
      {"fsdp_sharding_strategy: NO_SHARD", "strategy", R"("ddp")"},
      {"fsdp_sharding_strategy: 4", "mesh", R"({"replicate": 2, "shard": 4})"},
      {"sharding_strategy: SHARD_GRAD_OP", "reshard_after_forward", "false"},
      {"fsdp_reshard_after_forward: SHARD_GRAD_OP", "strategy", R"("zero2")"},
      {"fsdp_sharding_strategy: FULL", "strategy", ""},
      {"fsdp_auto_wrap_policy: SIZE_BASED_WRAP", "units", R"({"min_params": 100000000})"},
      {"fsdp_auto_wrap_policy: no_wrap", "units", R"("root")"},
      {"fsdp_state_dict_type: LOCAL_STATE_DICT", "state_dict_type", R"("local")"},
      {"fsdp_activation_checkpointing_offload: true", "offload",
       R"({"params": "none", "grads": "none", "optimizer": "none", "activations": "cpu"})"},
      {"{fsdp_version: 2, fsdp_reshard_after_forward: false}", "strategy", R"("zero2")"},
      {"{fsdp_version: 2, fsdp_reshard_after_forward: HYBRID_SHARD}", "strategy", R"("zero3")"},
      {"{fsdp_version: 2, fsdp_state_dict_type: LOCAL_STATE_DICT}", "state_dict_type", ""},
      {"{fsdp_version: 2, fsdp_forward_prefetch: true}", "strategy", ""},
      {"{fsdp_version: 3}", "strategy", ""},
  };
  for (const auto& one : wanted) {
    const Foreign found =
        accelerate("distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\nfsdp_config:\n  " +
                   std::string(one.keys) + "\n");
    EXPECT_EQ(found.accepted(), *one.meaning != '\0') << one.keys << "\n" << reports(found);
    if (*one.meaning == '\0') continue;
    EXPECT_EQ(json::parse(found.meaning.at(one.part).json()), json::parse(one.meaning)) << one.keys;
  }
}

TEST(Foreign, marks_model_parallelism_as_unsupported) {
  for (const char* const axis : {"tp", "cp", "sp"}) {
    const Foreign found = accelerate(
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 2}\n"
        "parallelism_config: {parallelism_config_" +
        std::string(axis) + "_size: 2}\n");
    EXPECT_TRUE(found.meaning.at("strategy").is("unsupported")) << axis << reports(found);
    EXPECT_EQ(found.origins.at("strategy").line, 4);
  }
}

TEST(Foreign, refuses_numbers_that_do_not_fit) {
  for (const char* const number : {"1e400", "99999999999999999999", "-7", "2.5", ".nan", "many"}) {
    const Foreign found =
        accelerate("distributed_type: MULTI_GPU\nnum_processes: " + std::string(number) + "\n");
    EXPECT_FALSE(found.accepted()) << number << reports(found);
  }
}

// Every key of every table is known to the reader, and none of those without effect is silent.
TEST(Foreign, says_something_about_every_key_without_effect) {
  for (const ForeignKind kind :
       {ForeignKind::kAccelerate, ForeignKind::kDeepSpeed, ForeignKind::kTrainingArguments}) {
    std::set<std::string> seen;
    for (const ForeignKey& key : foreign_keys(kind)) {
      EXPECT_TRUE(seen.insert(key.path).second) << key.path << " is listed twice";
      if (key.use == "no effect" || key.use == "renamed") {
        EXPECT_FALSE(key.note.empty()) << key.path;
      }
      if (key.use != "no effect" || key.path.find('.') != std::string::npos) continue;
      const Foreign found = read_foreign_text(kind, "{\"" + key.path + "\": \"x\"}", "k.json", {});
      EXPECT_NE(reports(found).find(key.path), std::string::npos) << key.path;
    }
  }
}

// What is neither part of the meaning nor without effect by its table is named all the same.
TEST(Foreign, names_what_it_read_and_did_not_take) {
  const struct {
    ForeignKind kind;
    const char* text;
    const char* path;
  } wanted[] = {
      {ForeignKind::kTrainingArguments, R"({"label_smoothing_factor": 0.1})",
       "label_smoothing_factor"},
      {ForeignKind::kTrainingArguments, R"({"neftune_noise_alpha": 5})", "neftune_noise_alpha"},
      {ForeignKind::kTrainingArguments, R"({"accelerator_config": {"split_batches": true}})",
       "accelerator_config"},
      {ForeignKind::kDeepSpeed,
       R"({"train_micro_batch_size_per_gpu": 1, "gradient_allreduce_op": "sum"})",
       "gradient_allreduce_op"},
      {ForeignKind::kDeepSpeed,
       R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"bf16_optimizer_states": true}})",
       "bf16.bf16_optimizer_states"},
      {ForeignKind::kAccelerate,
       R"({"distributed_type": "FSDP", "fsdp_config": {"fsdp_ignored_modules": "a.*"}})",
       "fsdp_config.fsdp_ignored_modules"},
  };
  for (const auto& one : wanted) {
    const Foreign found = read_foreign_text(one.kind, one.text, "k.json", {});
    EXPECT_TRUE(
        found_places(found, Severity::kNotApplicable).contains(one.path + std::string(":1")))
        << one.path << "\n"
        << reports(found);
  }
}

TEST(Foreign, names_leaf_units) {
  const Foreign found =
      read_foreign_text(ForeignKind::kDeepSpeed,
                        R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
          "leaf_module": {"classes": ["Experts"]}}})",
                        "k.json", {});
  EXPECT_EQ(found.meaning.at("leaf_units").json(), R"(["Experts"])");
  EXPECT_EQ(found.origins.at("leaf_units").line, 2);
}

// Any damage to any file ends in findings, never in a crash, a hang or a silent key.
TEST(Foreign, survives_four_thousand_damaged_files) {
  std::mt19937 random(20240611);
  const std::string parts[] = {
      "{", "}",  "[",    "]",     ":",  ",",    "\n",           "\t",   "&a ", "*a", "\"",
      "'", "- ", "null", "1e999", "-1", "auto", "\xEF\xBB\xBF", "\x80", "#",   "/*"};
  const auto files = entries();
  for (int round = 0; round < 4000; ++round) {
    const json& entry = files[random() % files.size()];
    std::string text = text_of(cases() / entry.at("file").get<std::string>());
    for (unsigned change = 0; change < 1 + random() % 6; ++change) {
      const std::size_t at = text.empty() ? 0 : random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 8);
      } else {
        text.insert(at, parts[random() % std::size(parts)]);
      }
    }
    const Foreign found = read_foreign_text(kind_of(entry), text, "damaged", context_of(entry));
    EXPECT_FALSE(json::parse(found.json()).is_null());
    if (found.accepted()) {
      EXPECT_FALSE(found.meaning.null());
    }
  }
}

}  // namespace
}  // namespace trireme::config
