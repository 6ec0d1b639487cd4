// The schedules against transformers 5.24 (data/transformers.json: those of its cases that this
// room has).
#include "trireme/optim/schedule.hpp"

#include "support/safetensors.hpp"
#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

namespace trireme::optim {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

ScheduleOptions options_of(const json& golden) {
  std::string name = golden["name"];
  if (name == "constant_with_warmup") name = "constant";
  if (name == "cosine_with_min_lr") name = "cosine";
  const double ratio =
      golden.contains("options") ? golden["options"].value("min_lr_rate", 0.0) : 0.0;
  return {name, golden["warmup"], golden["total"], ratio};
}

// transformers' cosine rises again behind its horizon; until there, and one step behind a longer
// warm-up, it is ours.
std::size_t num_comparable(const ScheduleOptions& options, std::size_t listed) {
  if (options.type != "cosine") return listed;
  const auto horizon = std::max(options.total_steps, options.warmup_steps + 1);
  return std::min(listed, static_cast<std::size_t>(horizon) + 1);
}

TEST(Schedule, follows_transformers) {
  const auto data = std::filesystem::path(TRIREME_TEST_DATA) / "optim/data/transformers.json";
  std::size_t compared = 0;
  const json all = support::read_json(data);
  for (const json& golden : all["cases"]) {
    const ScheduleOptions options = options_of(golden);
    SCOPED_TRACE(golden["name"].get<std::string>() + " warmup " + golden["warmup"].dump() +
                 " total " + golden["total"].dump());
    const Schedule schedule(options);
    for (std::size_t group = 0; group < golden["lr"].size(); ++group) {
      const double lr = golden["lr"][group];
      const json& expected = golden["lrs"][group];
      for (std::size_t i = 0; i < num_comparable(options, expected.size()); ++i, ++compared) {
        ASSERT_NEAR(lr * schedule.factor(static_cast<std::int64_t>(i)), expected[i].get<double>(),
                    1e-12 * lr)
            << "step " << i;
      }
    }
  }
  EXPECT_GT(compared, 400U);
}

TEST(Schedule, stays_at_the_least_ratio_behind_the_horizon) {
  for (const char* type : {"linear", "cosine"}) {
    const Schedule schedule({type, 10, 100, 0.1});
    EXPECT_DOUBLE_EQ(schedule.factor(10), 1.0);
    EXPECT_NEAR(schedule.factor(55), 0.55, 1e-12);
    for (const std::int64_t step : {100, 101, 150, 1'000'000'000}) {
      EXPECT_NEAR(schedule.factor(step), 0.1, 1e-15);
    }
  }
}

TEST(Schedule, factors_are_between_zero_and_one) {
  for (const char* type : {"constant", "linear", "cosine"}) {
    for (const std::int64_t warmup : {0, 1, 7, 50}) {
      const Schedule schedule({type, warmup, 20, 0.25});
      for (std::int64_t step = 0; step < 120; ++step) {
        EXPECT_GE(schedule.factor(step), step < warmup ? 0.0 : 0.25);
        EXPECT_LE(schedule.factor(step), 1.0);
      }
    }
  }
}

TEST(Schedule, constant_needs_no_horizon) {
  const Schedule schedule({.type = "constant"});
  EXPECT_EQ(schedule.factor(0), 1.0);
  EXPECT_EQ(schedule.factor(1'000'000), 1.0);
}

std::string config_error(const ScheduleOptions& options) {
  try {
    Schedule schedule(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Schedule, refuses_all_that_is_wrong_at_once) {
  EXPECT_THAT(
      config_error({"cosin", -1, 0, 1.5}),
      AllOf(HasSubstr("unknown schedule 'cosin'; did you mean 'cosine'"),
            HasSubstr("warmup_steps -1 is negative"), HasSubstr("total_steps 0 is no horizon"),
            HasSubstr("min_ratio 1.5 is not in [0, 1]")));
  EXPECT_THAT(config_error({"linear", 0, 10, std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("min_ratio nan"));
  EXPECT_THAT(config_error({"exponential", 0, 10, 0}),
              HasSubstr("there are constant, linear, cosine"));
  EXPECT_THROW(Schedule({"linear", 0, 10, 0}).factor(-1), Error);
}

}  // namespace
}  // namespace trireme::optim
