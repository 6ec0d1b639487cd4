#include "trireme/config/load.hpp"

#include "trireme/config/fields.hpp"

#include "problems.hpp"
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trireme::config {
namespace {

class ConfigFiles : public ::testing::Test {
 protected:
  ConfigFiles()
      : folder_(std::filesystem::temp_directory_path() /
                ("trireme-config-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ConfigFiles() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, std::string_view text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  static std::string problems_of(const std::filesystem::path& file) {
    try {
      load({file}, {"data.train=text.txt"});
    } catch (const Error& error) {
      return error.message;
    }
    return {};
  }

  std::filesystem::path folder_;
};

TEST(Config, reads_the_example_of_the_interface) {
  const Loaded loaded = load_text(R"(
run:        {name: demo, dir: runs, seed: 42, reproducible: true}
model:      {type: gpt2, layers: 6, hidden: 384, heads: 6, context: 256}
data:       {train: [{path: text.txt, format: text, weight: 1.0}], eval: [], tokenizer: bytes, sequence_length: 256}
train:      {global_batch_size: 16, micro_batch_size: 4, max_steps: 200, eval_every: 100}
optimizer:  {type: adamw, lr: 3.0e-4, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1, clip_norm: 1.0}
schedule:   {type: cosine, warmup_steps: 20, min_lr_ratio: 0.1}
precision:  {compute: bf16, reduce: fp32}
parallel:   {strategy: zero3, units: auto, shard_size: null, reshard_after_forward: true}
offload:    {work: none, grad: none, optimizer: none, nvme_path: null}
checkpoint: {every: 100, keep: 3, async: false, driver: direct}
log:        {every: 10, tensorboard: true}
stop:       {before_deadline: 120s, signals: [USR1, TERM]}
)",
                                  "x.yaml");
  Config expected;
  expected.data.train = {{"text.txt", "text", 1.0}};
  EXPECT_EQ(loaded.config, expected);
  EXPECT_EQ(loaded.sources.at("optimizer.lr"), "x.yaml:6");
  EXPECT_EQ(loaded.sources.at("data.train.0.path"), "x.yaml:4");
  EXPECT_EQ(loaded.sources.at("model.vocab"), "default");
}

TEST(Config, knows_the_source_of_every_field) {
  const Loaded loaded = load_text(kData, "x.yaml");
  for (const std::string& path : field_paths()) EXPECT_TRUE(loaded.sources.contains(path)) << path;
}

TEST(Config, lets_later_flags_win_and_says_so) {
  const Loaded loaded =
      load_text("optimizer: {lr: 1e-3}\n", "x.yaml",
                {"data.train=[{path: f.txt}]", "optimizer.lr=2e-3", "optimizer.betas=[0.8,0.99]"});
  EXPECT_EQ(loaded.config.optimizer.lr, 2e-3);
  EXPECT_EQ(loaded.config.optimizer.betas, (std::vector<double>{0.8, 0.99}));
  EXPECT_EQ(loaded.sources.at("optimizer.lr"), "--set optimizer.lr");
}

TEST(Config, sets_parts_of_the_data_by_index) {
  const Loaded loaded = load_text(kData, "x.yaml",
                                  {"data.train.0.path=/a b/#1: *.txt", "data.train.1.path=two.txt",
                                   "data.train.1.weight=0.5", "data.eval=eval.txt"});
  EXPECT_EQ(loaded.config.data.train,
            (std::vector<DataSource>{{"/a b/#1: *.txt", "text", 1.0}, {"two.txt", "text", 0.5}}));
  EXPECT_EQ(loaded.config.data.eval, (std::vector<DataSource>{{"eval.txt", "text", 1.0}}));
  EXPECT_EQ(loaded.sources.at("data.train.1.weight"), "--set data.train.1.weight");
}

TEST(Config, refuses_an_index_that_leaves_a_gap) {
  expect_contains(problems_of_flag("data.train.5.path=x"),
                  "--set data.train.5.path: data.train has 1 entries; the index must be 0 to 1");
  expect_contains(problems_of_flag("data.train.99999999999999999999.path=x"),
                  "the index must be 0 to 1");
}

TEST(Config, takes_a_path_alone_as_data) {
  const Loaded loaded =
      load_text("data: {train: [a.txt, {path: b.txt, weight: 2}], eval: c.txt}\n", "x.yaml");
  EXPECT_EQ(loaded.config.data.train,
            (std::vector<DataSource>{{"a.txt", "text", 1.0}, {"b.txt", "text", 2.0}}));
  EXPECT_EQ(loaded.config.data.eval, (std::vector<DataSource>{{"c.txt", "text", 1.0}}));
}

TEST(Config, names_the_nearest_key_for_a_typo) {
  expect_contains(problems_with_data("optimizer:\n  learning_rate: 1\n  wieght_decay: 0\n"),
                  "x.yaml:3: optimizer.wieght_decay: unknown key (did you mean 'weight_decay'?)");
  expect_contains(problems_with_data("optimiser: {lr: 1}\n"),
                  "x.yaml:1: optimiser: unknown key (did you mean 'optimizer'?)");
  expect_contains(problems_of_flag("model.layer=3"),
                  "--set model.layer: model.layer: unknown key (did you mean 'layers'?)");
}

TEST(Config, names_the_right_section_for_a_misplaced_key) {
  expect_contains(problems_with_data("train: {weight_decay: 0.1}\n"),
                  "(did you mean 'optimizer.weight_decay'?)");
  expect_contains(problems_with_data("optimizer.lr: 0.1\n"),
                  "unknown key (nest it: 'optimizer: {lr: ...}')");
}

TEST(Config, refuses_duplicate_keys_with_both_lines) {
  expect_contains(problems_with_data("train:\n  max_steps: 1\n  max_steps: 2\n"),
                  "x.yaml:3: train.max_steps: given twice, first in line 2");
  expect_contains(problems_with_data("log: {every: 1}\nlog: {every: 2}\n"),
                  "x.yaml:2: log: given twice, first in line 1");
  expect_contains(problems("data: {train: [{path: a, path: b}]}"),
                  "data.train.0.path: given twice");
}

TEST(Config, lists_all_problems_at_once) {
  const std::string text = problems_with_data(
      "run: {seed: minus}\nmodel: {layers: 0, heads: 5}\ntrain: {global_batch_size: 6}\nnonsense: "
      "1\n");
  expect_contains(text, "the configuration has 5 problems:");
  expect_contains(text, "\n  x.yaml:1: run.seed: must be a whole number, 0 or more, not 'minus'");
  expect_contains(text,
                  "\n  x.yaml:2: model.layers: 0 is out of range; allowed: 1 to 16384 blocks");
  expect_contains(text, "\n  x.yaml:2: model.heads: 5 does not divide model.hidden = 384");
  expect_contains(
      text,
      "\n  x.yaml:3: train.global_batch_size: 6 is not a multiple of train.micro_batch_size = 4");
  expect_contains(text, "\n  x.yaml:4: nonsense: unknown key");
}

TEST(Config, refuses_wrong_types) {
  const struct {
    const char* yaml;
    const char* problem;
  } cases[] = {
      {"run: {reproducible: yes}",
       "run.reproducible: must be true or false, not 'yes'; write true"},
      {"run: {reproducible: Off}", "must be true or false, not 'Off'; write false"},
      {"run: {reproducible: 'true'}", "not the quoted text 'true'; leave the quotes out"},
      {"model: {layers: six}", "model.layers: must be a whole number, not 'six'"},
      {"model: {layers: '6'}", "not the quoted text '6'; leave the quotes out"},
      {"model: {layers: 6.5}", "must be a whole number, not '6.5'"},
      {"train: {max_steps: 1e3}", "must be a whole number, not '1e3'; write 1000"},
      {"train: {max_steps: 1_000}", "must be a whole number, not '1_000'; write 1000"},
      {"train: {max_steps: 0x10}", "must be a whole number, not '0x10'"},
      {"train: {max_steps: 010}", "leave the leading 0 out"},
      {"train: {max_steps: 99999999999999999999}",
       "train.max_steps: 99999999999999999999 is too large"},
      {"train: {max_steps: [1]}", "must be a whole number, not a list"},
      {"train: {max_steps: {a: 1}}", "must be a whole number, not a group of keys"},
      {"train: {max_steps: }", "train.max_steps: has no value"},
      {"train: {max_steps: ~}", "train.max_steps: has no value"},
      {"optimizer: {lr: fast}", "optimizer.lr: must be a number, not 'fast'"},
      {"optimizer: {lr: 0,001}", "unknown key"},
      {"optimizer: {lr: .nan}", "optimizer.lr: must be a number, not '.nan'"},
      {"optimizer: {lr: nan}", "optimizer.lr: must be a finite number"},
      {"optimizer: {lr: inf}", "optimizer.lr: must be a finite number"},
      {"optimizer: {lr: 1e999}", "does not fit into a 64-bit floating-point number"},
      {"optimizer: {betas: 0.9}", "optimizer.betas: must be a list such as [0.9, 0.95], not '0.9'"},
      {"optimizer: {betas: [0.9, x]}", "optimizer.betas: entry 2 must be a number, not 'x'"},
      {"run: {name: [a]}", "run.name: must be a text, not a list"},
      {"run: demo", "run: must be a group of settings, such as 'run: {name: ...}'"},
      {"run: [1]", "run: must be a group of settings"},
      {"- a", "x.yaml:1: must be groups of settings"},
      {"stop: {before_deadline: soon}",
       "must be a duration such as 90, 120s, 10min or 2h, not 'soon'"},
      {"stop: {before_deadline: 01:00:00}", "must be a duration"},
      {"stop: {signals: TERM}", "stop.signals: must be a list such as [USR1, TERM]"},
  };
  for (const auto& [yaml, problem] : cases) expect_contains(problems_with_data(yaml), problem);
}

TEST(Config, refuses_wrong_types_in_data) {
  expect_contains(problems("data: {train: [[a]]}"), "data.train.0.path: must be a path or a group");
  expect_contains(problems("data: {train: [{path: a, weight: heavy}]}"),
                  "data.train.0.weight: must be a number");
  expect_contains(problems("data: {train: [{path: a, wieght: 1}]}"),
                  "data.train.0.wieght: unknown key (did you mean 'weight'?)");
  expect_contains(problems("data: {train: [{weight: 1}]}"),
                  "x.yaml:1: data.train.0.path: must not be empty");
  expect_contains(problems("data: {train: }"), "data.train: has no value; write [] for none");
}

TEST(Config, accepts_numbers_as_people_write_them) {
  const Loaded loaded = load_text(
      "data: {train: a}\noptimizer: {lr: 1e-3, eps: 1.0E-8, weight_decay: 0, clip_norm: +2}\n"
      "run: {seed: 18446744073709551615}\n",
      "x.yaml");
  EXPECT_EQ(loaded.config.optimizer.lr, 1e-3);
  EXPECT_EQ(loaded.config.optimizer.eps, 1e-8);
  EXPECT_EQ(loaded.config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(loaded.config.optimizer.clip_norm, 2.0);
  EXPECT_EQ(loaded.config.run.seed, 18446744073709551615ULL);
}

TEST(Config, reads_durations_with_units) {
  const auto seconds = [](const std::string& text) {
    return load_text(kData, "x.yaml", {"stop.before_deadline=" + text}).config.stop.before_deadline;
  };
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds("120s"), 120);
  EXPECT_EQ(seconds("10min"), 600);
  EXPECT_EQ(seconds("1.5h"), 5400);
  EXPECT_EQ(seconds("1d"), 86400);
}

TEST(Config, takes_null_only_where_a_setting_may_be_unset) {
  EXPECT_EQ(problems_with_data(
                "parallel: {shard_size: null}\noffload: {nvme_path: ~}\nmodel: {vocab: }\n"),
            "");
  expect_contains(problems_with_data("run: {name: null}\n"), "run.name: has no value");
}

TEST(Config, takes_an_empty_text_for_no_change) {
  EXPECT_EQ(problems_with_data(""), "");
  EXPECT_EQ(problems_with_data("# only a comment\n"), "");
  EXPECT_EQ(problems_with_data("---\n"), "");
  EXPECT_EQ(problems_with_data("run:\nmodel: {}\n"), "");
}

TEST(Config, reads_byte_order_mark_and_windows_line_ends) {
  const Loaded loaded =
      load_text("\xEF\xBB\xBFrun:\r\n  name: win\r\ndata:\r\n  train: a.txt\r\n", "x.yaml");
  EXPECT_EQ(loaded.config.run.name, "win");
  EXPECT_EQ(loaded.config.data.train.front().path, "a.txt");
  EXPECT_EQ(loaded.sources.at("data.train"), "x.yaml:4");
}

TEST(Config, refuses_anchors_aliases_and_tags) {
  expect_contains(problems_with_data("run: {name: &a demo, dir: *a}\n"),
                  "anchors (&name) are not allowed");
  std::string bomb = "a: &a [x, x]\n";
  for (char c = 'b'; c < 'z'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [*" + static_cast<char>(c - 1) + ", *" +
            static_cast<char>(c - 1) + "]\n";
  }
  expect_contains(problems_with_data(bomb), "x.yaml:1: anchors (&name) are not allowed");
  expect_contains(problems_with_data("run: {seed: !!int '3'}\n"), "is not allowed; leave it out");
}

TEST(Config, survives_hostile_texts) {
  expect_contains(problems_with_data(std::string(100000, '[')), "x.yaml:1: ");
  expect_contains(problems_with_data(std::string(100000, '{')), "x.yaml:1: ");
  expect_contains(problems_with_data("a: [[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]\n"),
                  "nested deeper than 16 levels");
  expect_contains(problems_with_data(std::string(2 << 20, 'a')), "larger than 1024 KiB");
  expect_contains(problems_with_data(std::string("run: {name: a\0b}", 16)),
                  "byte 0x00 is not UTF-8 text");
  expect_contains(problems_with_data("run: {name: \"\\0\"}"), "is not a plain folder name");
  expect_contains(problems_with_data("\xFF\xFEr\0u\0n\0"), "byte 0xff is not UTF-8 text");
  expect_contains(problems_with_data("run:\n\tname: x\n"), "x.yaml:2: ");
  expect_contains(problems_with_data("run: {name: x\n"), "not valid YAML");
  expect_contains(problems_with_data("run: {name: a}\n---\nrun: {name: b}\n"), "a second document");
  expect_contains(problems_with_data("? [a, b]\n: 1\n"), "a key must be a plain word");
  expect_contains(problems_with_data(std::string(1000, 'k') + ": 1\n"), "unknown key");
  expect_contains(problems_with_data(std::string(50000, 'k') + ": 1\n"), "x.yaml:1: ");
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "key" + std::to_string(i) + ": 1\n";
  expect_contains(problems_with_data(many), "... and 950 more");
}

TEST(Config, refuses_malformed_assignments) {
  expect_contains(problems_of_flag("optimizer.lr"),
                  "--set optimizer.lr: must look like --set optimizer.lr=0.001");
  expect_contains(problems_of_flag("=1"), "must look like");
  expect_contains(problems_of_flag("optimizer.betas=[0.9"),
                  "--set optimizer.betas: not valid YAML");
  expect_contains(problems_of_flag("nonsense=1"), "unknown key");
  expect_contains(problems_of_flag("optimizer.lr="), "optimizer.lr: has no value");
}

TEST(Config, applies_a_whole_section_from_a_flag) {
  const Loaded loaded = load_text(kData, "x.yaml", {"model={layers: 2, heads: 3}"});
  EXPECT_EQ(loaded.config.model.layers, 2);
  EXPECT_EQ(loaded.config.model.hidden, 384);
  EXPECT_EQ(loaded.sources.at("model.heads"), "--set model");
}

TEST(Config, refuses_run_names_that_are_no_folder_name) {
  for (const char* name : {"a/b", "..", ".", ".hidden", "-x", "a b", "", "a\\tb", "a:b"}) {
    expect_contains(problems_with_data("run: {name: \"" + std::string(name) + "\"}"),
                    "is not a plain folder name");
  }
  expect_contains(problems_with_data("run: {name: " + std::string(300, 'a') + "}"),
                  "is not a plain folder name");
  EXPECT_EQ(problems_with_data("run: {name: gpt2-124m_lr=3e-4.v2}"), "");
  EXPECT_EQ(problems_with_data("run: {name: 2024}"), "");
}

TEST_F(ConfigFiles, later_files_win_key_by_key_and_lists_are_replaced) {
  const auto base =
      write("base.yaml", "run: {name: base, seed: 1}\ndata: {train: [a.txt, b.txt]}\n");
  const auto mine = write("mine.yaml", "run: {name: mine}\ndata: {train: [c.txt]}\n");
  const Loaded loaded = load({base, mine});
  EXPECT_EQ(loaded.config.run.name, "mine");
  EXPECT_EQ(loaded.config.run.seed, 1U);
  EXPECT_EQ(loaded.config.data.train, (std::vector<DataSource>{{"c.txt", "text", 1.0}}));
  EXPECT_EQ(loaded.sources.at("run.name"), mine.string() + ":1");
  EXPECT_FALSE(loaded.sources.contains("data.train.1.path"));
}

TEST_F(ConfigFiles, names_a_missing_file_and_a_folder) {
  expect_contains(problems_of(folder_ / "none.yaml"), "none.yaml: no such file");
  expect_contains(problems_of(folder_), "is a folder, not a configuration file");
  expect_contains(problems_of("/dev/zero"), "larger than 1024 KiB");
}

TEST_F(ConfigFiles, names_a_binary_file) {
  expect_contains(problems_of(write("x.bin", std::string_view("\x7f"
                                                              "ELF\x02\x01\0\0",
                                                              8))),
                  "x.bin:1: byte 0x7f is not UTF-8 text; is this a configuration file?");
  EXPECT_EQ(problems_of(write("empty.yaml", "")), "");
}

TEST_F(ConfigFiles, every_example_loads) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TRIREME_TEST_DATA "/../share/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    EXPECT_NO_THROW(load({entry.path()})) << entry.path();
    EXPECT_NO_THROW(load({entry.path()}, {"data.train=/tmp/some text.txt"})) << entry.path();
  }
  EXPECT_GE(count, 3);
}

TEST(LoadGroups, one_group_or_a_list_with_what_is_set) {
  const Loaded one = load_text(
      "data: {train: a}\noptimizer: {groups: {match: 'norm|bias$', weight_decay: 0.5}}\n", "x");
  ASSERT_EQ(one.config.optimizer.groups.size(), 1U);
  EXPECT_EQ(one.config.optimizer.groups[0].match, "norm|bias$");
  EXPECT_EQ(one.config.optimizer.groups[0].weight_decay, 0.5);
  EXPECT_FALSE(one.config.optimizer.groups[0].eps);
  const Loaded set =
      load_text("data: {train: a}\noptimizer: {groups: [{match: a}, {match: b}]}\n", "x",
                {"optimizer.groups.1.lr_multiplier=0.25", "optimizer.groups.2.match=^c:.*#$",
                 "optimizer.groups.2.eps=1e-3"});
  ASSERT_EQ(set.config.optimizer.groups.size(), 3U);
  EXPECT_EQ(set.config.optimizer.groups[1].lr_multiplier, 0.25);
  EXPECT_EQ(set.config.optimizer.groups[2].match, "^c:.*#$");
  EXPECT_EQ(set.config.optimizer.groups[2].eps, 1e-3);
  // What is written is what is read.
  const Loaded again = load_text(to_yaml(set.config, set.sources), "again");
  EXPECT_EQ(again.config, set.config);
}

TEST(LoadGroups, refuse_a_word_and_an_unknown_key) {
  const auto problems = [](const std::string& groups) {
    try {
      load_text("data: {train: a}\noptimizer: {groups: " + groups + "}\n", "x.yaml");
    } catch (const Error& error) {
      return error.message;
    }
    return std::string("accepted");
  };
  expect_contains(problems("bias"), "optimizer.groups.0.match: must be a group such as");
  expect_contains(problems("[{match: a, weigth_decay: 0}]"),
                  "unknown key (did you mean 'weight_decay'?)");
  expect_contains(problems("{match: a, match: b}"), "given twice");
}

TEST(LoadOptions, are_texts_that_files_and_flags_give) {
  const Loaded loaded = load_text(
      "data: {train: a}\nschedule: {options: {num_cycles: 2, warmup_type: linear, flag: true}}\n",
      "x", {"schedule.options.power=0.5", "schedule.options.num_cycles=3"});
  const std::map<std::string, std::string> expected{
      {"flag", "true"}, {"num_cycles", "3"}, {"power", "0.5"}, {"warmup_type", "linear"}};
  EXPECT_EQ(loaded.config.schedule.options, expected);
  const Loaded again = load_text(to_yaml(loaded.config, loaded.sources), "again");
  EXPECT_EQ(again.config, loaded.config);
  EXPECT_EQ(again.config.schedule.options, expected);
}

TEST(LoadModel, other_sections_are_passed_over) {
  const Model model = load_model(
      "model: {type: llama, layers: 3, hidden: 64, heads: 4, context: 16, vocab: 100}\n"
      "data: {train: [], sequence_length: 999}\n"
      "of_the_future: {setting: 1}\n",
      "stored");
  EXPECT_EQ(model.layers, 3);
  EXPECT_EQ(model.vocab, 100);
}

TEST(LoadModel, what_is_wrong_with_the_model_is_said) {
  for (const char* yaml : {"model: {layers: -1}", "model: {heads: 5, hidden: 64}",
                           "model: {of_the_future: 1}", "model: 7"}) {
    EXPECT_THROW(load_model(yaml, "stored"), Error) << yaml;
  }
}

}  // namespace
}  // namespace trireme::config
