// Metric schedules against torch's ReduceLROnPlateau and transformers' GreedyLR.
#include "trireme/optim/metric_schedule.hpp"

#include "support/safetensors.hpp"
#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

#include <filesystem>

namespace trireme::optim {
namespace {

using nlohmann::json;

json golden() {
  return support::read_json(std::filesystem::path(TRIREME_TEST_DATA) /
                            "optim/data/sched/metric.json");
}

MetricScheduleOptions options_of(const json& one) {
  MetricScheduleOptions options;
  options.type = one["name"];
  options.bases = one["lr"].get<std::vector<double>>();
  for (const auto& [name, value] : one["options"].items()) {
    if (value.is_array()) {
      options.min_lrs = value.get<std::vector<double>>();
    } else {
      options.options[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return options;
}

// In one go, and going on from its state after every measurement.
TEST(MetricSchedule, follows_the_originals_also_across_resumes) {
  const json all = golden();
  for (const json& one : all["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>() + " " + one["options"].dump());
    const MetricScheduleOptions options = options_of(one);
    MetricSchedule whole(options);
    MetricSchedule part(options);
    for (std::size_t i = 0; i < one["metrics"].size(); ++i) {
      MetricSchedule next(options);
      next.restore(part.state());
      part = next;
      whole.observe(one["metrics"][i]);
      part.observe(one["metrics"][i]);
      ASSERT_EQ(whole.num_bad(), one["num_bad_epochs"][i].get<std::int64_t>()) << i;
      ASSERT_EQ(part.state(), whole.state()) << i;
      for (std::size_t g = 0; g < options.bases.size(); ++g) {
        const double expected = one["lrs"][g][i];
        ASSERT_NEAR(whole.rates()[g], expected, 1e-12 * expected) << i;
        EXPECT_EQ(whole.rate(options.bases[g]), whole.rates()[g]);
      }
    }
  }
}

TEST(MetricSchedule, refuses_state_that_is_not_its_own) {
  MetricSchedule one({.type = "greedy", .bases = {1}});
  const MetricSchedule two({.type = "greedy", .bases = {1, 2}});
  EXPECT_THROW(one.restore(two.state()), Error);
  for (const char* text : {"", "{}", "[]", "{\"rates\":[\"x\"]}"})
    EXPECT_THROW(one.restore(text), Error);
}

TEST(MetricSchedule, refuses_options_that_make_no_sense) {
  for (const auto& [name, value] : {std::pair<std::string, std::string>{"factor", "1"},
                                    {"patience", "-1"},
                                    {"patience", "1.5"},
                                    {"mode", "best"},
                                    {"warmup", "3"}}) {
    EXPECT_THROW(MetricSchedule({.options = {{name, value}}, .bases = {1}}), Error) << name;
  }
}

}  // namespace
}  // namespace trireme::optim
