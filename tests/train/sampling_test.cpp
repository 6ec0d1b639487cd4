#include "train/sampling.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace trireme::train {

namespace {

const std::vector<float> kScores{std::log(0.1F), std::log(0.5F), std::log(0.05F), std::log(0.35F)};

std::set<std::int64_t> reached(const Sampling& sampling) {
  std::set<std::int64_t> tokens;
  for (int i = 0; i < 1000; ++i) tokens.insert(draw(kScores, sampling, {}, i / 1000.0));
  return tokens;
}

TEST(Draw, temperature_zero_takes_the_likeliest) {
  for (const double uniform : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(draw(kScores, {.temperature = 0}, {}, uniform), 1);
  }
}

TEST(Draw, takes_tokens_as_often_as_they_are_likely) {
  std::array<int, 4> count{};
  for (int i = 0; i < 10000; ++i)
    ++count[static_cast<std::size_t>(draw(kScores, {}, {}, (i + 0.5) / 10000.0))];
  EXPECT_NEAR(count[0], 1000, 2);
  EXPECT_NEAR(count[1], 5000, 2);
  EXPECT_NEAR(count[2], 500, 2);
  EXPECT_NEAR(count[3], 3500, 2);
}

TEST(Draw, filters_leave_what_they_should) {
  EXPECT_EQ(reached({}), (std::set<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(reached({.top_k = 2}), (std::set<std::int64_t>{1, 3}));
  EXPECT_EQ(reached({.top_p = 0.49}), (std::set<std::int64_t>{1}));
  EXPECT_EQ(reached({.top_p = 0.8}), (std::set<std::int64_t>{1, 3}));
  EXPECT_EQ(reached({.top_p = 0.9}), (std::set<std::int64_t>{0, 1, 3}));
  EXPECT_EQ(reached({.min_p = 0.15}), (std::set<std::int64_t>{0, 1, 3}));
  EXPECT_EQ(reached({.min_p = 1}), (std::set<std::int64_t>{1}));
  // Top-k comes first, and top-p sees what it left.
  EXPECT_EQ(reached({.top_k = 2, .top_p = 0.58}), (std::set<std::int64_t>{1}));
}

TEST(Draw, the_repetition_penalty_is_that_of_transformers) {
  const std::vector<float> scores{2.0F, 1.5F, -1.0F, -1.5F};
  const std::vector<std::int64_t> text{0, 0, 2};
  EXPECT_EQ(draw(scores, {.temperature = 0, .repetition_penalty = 1.2}, text, 0), 0);
  EXPECT_EQ(draw(scores, {.temperature = 0, .repetition_penalty = 2.0}, text, 0), 1);
  // A negative score is multiplied: -1 becomes -2, below -1.5.
  const std::vector<float> negative{-1.0F, -1.5F};
  EXPECT_EQ(draw(negative, {.temperature = 0, .repetition_penalty = 2.0},
                 std::vector<std::int64_t>{0}, 0),
            1);
}

}  // namespace

}  // namespace trireme::train
