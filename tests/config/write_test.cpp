#include "trireme/config/fields.hpp"
#include "trireme/config/load.hpp"

#include "problems.hpp"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace trireme::config {
namespace {

// A Config that differs from the default in every field that this version lets differ.
Config unusual() {
  Config c;
  c.run = {"2024", "/run s/\"q\"\xC3\xA9#", 18446744073709551615ULL, false, 3, "cuda", 0.125};
  c.model = {"llama", 2, 96, 4, 2, 64, 300, 128, false, 1e-6, 1.0 / 3.0, 0.1};
  c.data = {{{"null", "text", 0.1}, {"*a: b", "text", 1e-5}},
            {{"true", "text", 3}},
            0.01,
            "bytes",
            32,
            false};
  c.train = {6, 3, 7, 2, 0};
  c.optimizer = {"adamw", 0.1 + 0.2, {0.0, 0.999}, 5e-324, 0, true, 0};
  c.schedule = {"linear", 0, 1000000, 1};
  c.precision.compute = "fp32";
  c.parallel.strategy = "ddp";
  c.checkpoint = {0, 0, false, "direct"};
  c.log = {3, false};
  c.stop = {7200.5, {}};
  return c;
}

TEST(ConfigWrite, reads_back_what_it_wrote) {
  for (const Config& config : {unusual(), [] {
                                 Config c;
                                 c.data.train = {{"a.txt", "text", 1}};
                                 c.model.plugin = "lib/a b: c.so";
                                 c.model.args = {{"width", "4"}, {"name", "of: it"}};
                                 return c;
                               }()}) {
    const std::string yaml = to_yaml(config);
    const Loaded loaded = load_text(yaml, "config.yaml");
    EXPECT_EQ(loaded.config, config) << yaml;
  }
}

TEST(ConfigWrite, says_where_each_value_came_from) {
  const Loaded loaded = load_text(kData, "x.yaml", {"optimizer.lr=0.001"});
  const std::string yaml = to_yaml(loaded.config, loaded.sources);
  expect_contains(yaml,
                  "\noptimizer:\n  type: adamw  # default\n  lr: 0.001  # --set optimizer.lr\n");
  expect_contains(
      yaml,
      "  train:  # x.yaml:1\n    - path: text.txt  # x.yaml:1\n      format: text  # default\n");
  expect_contains(yaml, "  before_deadline: 120s  # default\n");
  expect_contains(yaml, "  shard_size: null  # default\n");
}

TEST(ConfigWrite, keeps_a_source_on_its_line) {
  const Sources sources{{"run.name", "a\nrun: {name: evil}"}};
  Config config;
  config.data.train = {{"a", "text", 1}};
  EXPECT_EQ(load_text(to_yaml(config, sources), "x").config, config);
}

TEST(ConfigWrite, lists_what_differs_from_the_default) {
  const Loaded loaded = load_text(kData, "x.yaml", {"optimizer.lr=0.001", "log.every=10"});
  const auto rows = changed_settings(loaded.config, loaded.sources);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].first, "data.train");
  EXPECT_EQ(rows[1].first, "optimizer.lr");
  EXPECT_EQ(rows[1].second, "0.001 (--set optimizer.lr)");
}

TEST(ConfigWrite, describes_every_field_in_help_reference_and_schema) {
  const std::string help = help_text();
  const std::string page = reference_page();
  const auto schema = nlohmann::json::parse(json_schema());
  for (const Field& field : fields()) {
    const std::string path(field.path);
    const std::string section = path.substr(0, path.find('.'));
    const std::string key = path.substr(path.find('.') + 1);
    expect_contains(help, "  " + path + " ");
    expect_contains(page, "| `" + key + "` |");
    EXPECT_TRUE(schema.at("properties").at(section).at("properties").contains(key)) << path;
  }
  for (const Section& section : sections())
    expect_contains(page, "\n## " + std::string(section.name) + "\n");
}

TEST(ConfigWrite, has_one_help_entry_per_prefix) {
  const std::string help = help_text("optimizer.eps");
  EXPECT_EQ(std::ranges::count(help, '\n'), 2);
  expect_contains(help, "epsilon of adamw, adam and adagrad");
  expect_contains(help, "(number; default 1e-08; above 0, at most 1)");
}

TEST(ConfigWrite, offers_only_what_this_version_has_in_the_schema) {
  const auto schema = nlohmann::json::parse(json_schema());
  const auto& parallel = schema.at("properties").at("parallel").at("properties");
  EXPECT_EQ(parallel.at("strategy").at("enum"), (nlohmann::json{"ddp", "zero1", "zero2", "zero3", "hsdp"}));
  EXPECT_EQ(parallel.at("shard_size").at("type"), (nlohmann::json{"integer", "null"}));
  EXPECT_EQ(parallel.at("shard_size").at("default"), nullptr);
  const auto& lr = schema.at("properties").at("optimizer").at("properties").at("lr");
  EXPECT_EQ(lr.at("exclusiveMinimum"), 0);
  EXPECT_EQ(lr.at("default"), 3e-4);
}

}  // namespace
}  // namespace trireme::config
