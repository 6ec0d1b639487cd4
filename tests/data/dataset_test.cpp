#include "trireme/data/dataset.hpp"

#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace trireme::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Text whose byte i is i modulo 251, so that a sample says where it comes from.
std::string counting(std::size_t size, unsigned start = 0) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i + start) % 251);
  return text;
}

class Files : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  SourceOptions source(const std::string& name, std::size_t size, double weight = 1.0) {
    return {.path = write(name, counting(size)), .weight = weight};
  }

  trireme::testing::TempDir folder_;
};

using DatasetTest = Files;
using SplitTest = Files;

std::vector<std::int64_t> sample(const Dataset& dataset, std::uint64_t index) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(dataset.sequence_length()) + 1);
  dataset.read(index, tokens);
  return tokens;
}

// Number of samples that start at each token of a counting() text of less than 251 bytes.
std::map<std::int64_t, int> starts(const Dataset& dataset) {
  std::map<std::int64_t, int> count;
  for (std::uint64_t i = 0; i < dataset.num_samples(); ++i) ++count[sample(dataset, i)[0]];
  return count;
}

// The message of the error that `action` throws, checked to be a Config error.
template <class Action>
std::string config_error(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST_F(DatasetTest, sample_i_covers_its_tokens_and_one_more) {
  const auto dataset = open({.sources = {source("a", 1000)}, .sequence_length = 16});
  EXPECT_EQ(dataset->num_samples(), 62U);  // 62 * 16 + 1 = 993 of 1000 tokens
  EXPECT_EQ(dataset->vocabulary_size(), 256);
  for (std::uint64_t i = 0; i < dataset->num_samples(); ++i) {
    const auto tokens = sample(*dataset, i);
    for (std::size_t t = 0; t <= 16; ++t) {
      ASSERT_EQ(tokens[t], static_cast<std::int64_t>((i * 16 + t) % 251));
    }
  }
}

TEST_F(DatasetTest, bytes_above_127_are_tokens_above_127) {
  const auto path = write("umlaut", "\xc3\xbc\xff\x80");
  EXPECT_EQ(sample(*open({.sources = {{.path = path}}, .sequence_length = 3}), 0),
            (std::vector<std::int64_t>{0xc3, 0xbc, 0xff, 0x80}));
}

TEST_F(DatasetTest, shortest_text_is_one_sample) {
  EXPECT_EQ(open({.sources = {source("a", 17)}, .sequence_length = 16})->num_samples(), 1U);
  EXPECT_EQ(open({.sources = {source("b", 32)}, .sequence_length = 16})->num_samples(), 1U);
  EXPECT_EQ(open({.sources = {source("c", 33)}, .sequence_length = 16})->num_samples(), 2U);
}

TEST_F(DatasetTest, sources_follow_each_other) {
  const auto b = write("b", counting(21, 100));
  const auto dataset = open({.sources = {source("a", 11), {.path = b}}, .sequence_length = 5});
  EXPECT_EQ(starts(*dataset),
            (std::map<std::int64_t, int>{{0, 1}, {5, 1}, {100, 1}, {105, 1}, {110, 1}, {115, 1}}));
}

TEST_F(DatasetTest, whole_part_of_a_weight_repeats_and_the_fraction_takes_a_part) {
  const auto twice = open({.sources = {source("a", 201, 2.0)}, .sequence_length = 10});
  for (const auto& [start, count] : starts(*twice)) EXPECT_EQ(count, 2) << start;
  const auto more = open({.sources = {source("a", 201, 1.25)}, .sequence_length = 10});
  EXPECT_EQ(more->num_samples(), 25U);
  int doubled = 0;
  for (const auto& [start, count] : starts(*more)) doubled += count == 2;
  EXPECT_EQ(doubled, 5);
  EXPECT_EQ(starts(*more).size(), 20U);
  const auto half = open({.sources = {source("a", 201, 0.5)}, .sequence_length = 10});
  EXPECT_EQ(half->num_samples(), 10U);
  EXPECT_EQ(starts(*half).size(), 10U);
  EXPECT_GT(starts(*half).rbegin()->first, 100);  // not merely the beginning
  EXPECT_EQ(starts(*half),
            starts(*open({.sources = {source("a", 201, 0.5)}, .sequence_length = 10})));
}

TEST_F(DatasetTest, every_problem_is_in_one_config_error) {
  const std::string message = config_error([&] {
    open({.sources = {{.path = folder_ / "missing.txt"},
                      {.path = folder_.path()},
                      {.path = write("empty.txt", "")},
                      source("short.txt", 16),
                      {.path = write("odd.txt", counting(100)), .format = "test"},
                      source("zero.txt", 100, 0.0),
                      source("negative.txt", 100, -1.0),
                      source("nan.txt", 100, std::numeric_limits<double>::quiet_NaN()),
                      source("infinite.txt", 100, std::numeric_limits<double>::infinity()),
                      source("tiny.txt", 100, 1e-3),
                      source("huge.txt", 100, 1e30),
                      source("good.txt", 100)},
          .tokenizer = "byte",
          .sequence_length = 16});
  });
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("12 problems"), HasSubstr("there is no tokenizer 'byte'; did you mean 'bytes'"),
            HasSubstr("missing.txt: No such file"), HasSubstr(": a directory"),
            HasSubstr("empty.txt: the file is empty"),
            HasSubstr("short.txt: 16 tokens are too few: one sample is sequence_length + 1 = 17")));
  EXPECT_THAT(message,
              AllOf(HasSubstr("odd.txt: unknown format 'test'; did you mean 'text'"),
                    HasSubstr("zero.txt: weight 0 "), HasSubstr("negative.txt: weight -1 "),
                    HasSubstr("nan.txt: weight nan "), HasSubstr("infinite.txt: weight inf "),
                    HasSubstr("tiny.txt: weight 0.001 of 6 samples takes none"),
                    HasSubstr("huge.txt: weight 1e+30 makes the epoch too long"),
                    Not(HasSubstr("good.txt"))));
}

TEST_F(DatasetTest, one_problem_is_one_line) {
  EXPECT_EQ(config_error([&] { open({.sources = {{.path = "/nowhere/text"}}}); }),
            "/nowhere/text: No such file or directory");
  EXPECT_EQ(config_error([] { open({}); }), "no data sources are given");
  for (const std::int64_t length : {0, -1}) {
    EXPECT_THAT(
        config_error([&] { open({.sources = {source("a", 9)}, .sequence_length = length}); }),
        HasSubstr("is less than 1"));
  }
  EXPECT_THAT(config_error([&] {
                open({.sources = {source("a", 9)},
                      .sequence_length = std::numeric_limits<std::int64_t>::max()});
              }),
              HasSubstr("9 tokens are too few"));
}

TEST_F(DatasetTest, a_named_pipe_is_refused_at_once) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(config_error([&] { open({.sources = {{.path = folder_ / "pipe"}}}); }),
              HasSubstr("not a regular file"));
}

TEST_F(DatasetTest, an_unreadable_file_is_refused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const SourceOptions secret = source("secret", 1000);
  std::filesystem::permissions(secret.path, std::filesystem::perms::none);
  EXPECT_THAT(config_error([&] { open({.sources = {secret}}); }), HasSubstr("Permission denied"));
}

TEST_F(DatasetTest, a_file_cut_short_while_in_use_is_an_io_error) {
  const SourceOptions shrinking = source("a", 1000);
  const auto dataset = open({.sources = {shrinking}, .sequence_length = 10});
  std::filesystem::resize_file(shrinking.path, 500);
  EXPECT_EQ(sample(*dataset, 0)[0], 0);
  try {
    sample(*dataset, 60);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_THAT(error.message, AllOf(HasSubstr(shrinking.path.string()), HasSubstr("shorter")));
  }
}

TEST_F(DatasetTest, a_replaced_file_does_not_disturb_its_readers) {
  const SourceOptions old = source("a", 1000);
  const auto dataset = open({.sources = {old}, .sequence_length = 10});
  const auto before = sample(*dataset, 90);
  std::filesystem::rename(write("new", "short"), old.path);
  EXPECT_EQ(sample(*dataset, 90), before);
}

TEST_F(DatasetTest, refuses_an_index_behind_the_last) {
  const auto dataset = open({.sources = {source("a", 100)}, .sequence_length = 10});
  EXPECT_THROW(sample(*dataset, 9), Error);
}

TEST_F(SplitTest, evaluation_is_the_end_of_the_text_and_training_the_rest) {
  const auto [train, eval] =
      split(open({.sources = {source("a", 241)}, .sequence_length = 10}), 0.25);
  EXPECT_EQ(train->num_samples(), 18U);
  EXPECT_EQ(eval->num_samples(), 6U);
  EXPECT_EQ(sample(*train, 17).back(), 180);
  EXPECT_EQ(sample(*eval, 0).front(), 180);  // an input here, a target there
  EXPECT_EQ(sample(*eval, 5).back(), 240);
}

TEST_F(SplitTest, weights_apply_to_training_only_and_repeat_nothing_held_out) {
  const auto [train, eval] =
      split(open({.sources = {source("a", 201, 2.5)}, .sequence_length = 10}), 0.2);
  EXPECT_EQ(train->num_samples(), 40U);
  EXPECT_EQ(eval->num_samples(), 4U);
  for (const auto& [start, count] : starts(*train)) EXPECT_LT(start, 160);
  for (const auto& [start, count] : starts(*eval)) EXPECT_GE(start, 160);
}

TEST_F(SplitTest, every_source_gives_its_share) {
  const auto b = write("b", counting(101, 130));
  const auto [train, eval] =
      split(open({.sources = {source("a", 101), {.path = b}}, .sequence_length = 10}), 0.1);
  EXPECT_EQ(starts(*eval), (std::map<std::int64_t, int>{{90, 1}, {220, 1}}));
  EXPECT_EQ(train->num_samples(), 18U);
}

TEST_F(SplitTest, at_least_one_sample_is_held_out_and_one_left) {
  const auto [train, eval] =
      split(open({.sources = {source("a", 21)}, .sequence_length = 10}), 0.01);
  EXPECT_EQ(train->num_samples(), 1U);
  EXPECT_EQ(eval->num_samples(), 1U);
  EXPECT_THAT(config_error([&] {
                split(open({.sources = {source("b", 11)}, .sequence_length = 10}), 0.01);
              }),
              HasSubstr("leaves nothing to train on"));
}

TEST_F(SplitTest, fraction_zero_holds_out_nothing) {
  const auto whole = open({.sources = {source("a", 21)}, .sequence_length = 10});
  const auto [train, eval] = split(whole, 0.0);
  EXPECT_EQ(train, whole);
  EXPECT_EQ(eval, nullptr);
}

TEST_F(SplitTest, refuses_fractions_outside_the_interval) {
  const auto whole = open({.sources = {source("a", 101)}, .sequence_length = 10});
  for (const double fraction : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(config_error([&] { split(whole, fraction); }), HasSubstr("not in [0, 1)"));
  }
}

class Squares final : public Dataset {
 public:
  std::uint64_t num_samples() const override { return 10; }
  std::int64_t sequence_length() const override { return 1; }
  std::int64_t vocabulary_size() const override { return 100; }
  void read(std::uint64_t index, std::span<std::int64_t> tokens) const override {
    tokens[0] = tokens[1] = static_cast<std::int64_t>(index * index);
  }
};

TEST(Split, a_users_dataset_is_split_by_position) {
  const auto [train, eval] = split(std::make_shared<Squares>(), 0.3);
  EXPECT_EQ(train->num_samples(), 7U);
  EXPECT_EQ(eval->num_samples(), 3U);
  EXPECT_EQ(sample(*eval, 0)[0], 49);
  EXPECT_THROW(sample(*train, 7), Error);
}

}  // namespace
}  // namespace trireme::data
