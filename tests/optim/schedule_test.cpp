// The schedules against the originals: every case of transformers 5.24, DeepSpeed 0.19.8 and
// accelerate 1.15 in data/sched. What is refused or done otherwise on purpose is listed here.
#include "trireme/optim/schedule.hpp"

#include "support/safetensors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/optim/metric_schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::optim {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json golden(const std::string& name) {
  return support::read_json(std::filesystem::path(TRIREME_TEST_DATA) / "optim/data/sched" / name);
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// What the originals call by names of their own.
void take_common(ScheduleOptions& options) {
  const auto take = [&](const char* name, auto& into) {
    const auto found = options.options.find(name);
    if (found == options.options.end()) return;
    into = static_cast<std::remove_reference_t<decltype(into)>>(std::stod(found->second));
    options.options.erase(found);
  };
  take("warmup_num_steps", options.warmup_steps);
  take("total_num_steps", options.total_steps);
  take("min_lr_rate", options.min_ratio);
  take("min_lr_ratio", options.min_ratio);
}

ScheduleOptions options_of(const json& one) {
  ScheduleOptions options;
  options.type = one["name"];
  if (options.type == "torch_one_cycle") options.type = "one_cycle";
  options.warmup_steps = one.value("warmup", std::int64_t{0});
  if (options.type == "constant") options.warmup_steps = 0;  // ours warms up
  options.total_steps = one.value("total", std::int64_t{0});
  options.base_lr = one["lr"][0];
  options.hold = false;
  const json from = one.value("options", json::object());
  for (const auto& [name, value] : from.items()) options.options[name] = text_of(value);
  take_common(options);
  return options;
}

std::string config_error(const ScheduleOptions& options) {
  try {
    Schedule schedule(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message;
  }
  return "accepted";
}

void expect_rates(const json& one, const Schedule& schedule) {
  for (std::size_t group = 0; group < one["lr"].size(); ++group) {
    const double lr = one["lr"][group];
    const json& expected = one["lrs"][group];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double rate = schedule.rate(lr, static_cast<std::int64_t>(i));
      const double wanted = expected[i];
      // Where cosines cancel, relative to the base rate.
      ASSERT_NEAR(rate, wanted, 1e-12 * std::max(std::fabs(wanted), 1e-4 * lr))
          << "group " << group << " step " << i;
    }
  }
}

TEST(Schedule, follows_transformers) {
  const json all = golden("transformers.json");
  std::size_t compared = 0;
  for (const json& one : all["cases"]) {
    json shown = one;
    shown.erase("lrs");
    SCOPED_TRACE(shown.dump());
    const ScheduleOptions options = options_of(one);
    if (!one.contains("error")) {
      expect_rates(one, Schedule(options));
      ++compared;
      continue;
    }
    // A least rate has a default here, as has the warm-up: 0.
    if (one["name"] == "cosine_with_min_lr" || one["name"] == "cosine_warmup_with_min_lr") continue;
    if (!one.contains("warmup")) continue;
    EXPECT_NE(config_error(options), "accepted");
  }
  EXPECT_EQ(compared, 71U);
}

TEST(Schedule, follows_deepspeed) {
  const json all = golden("deepspeed.json");
  std::size_t compared = 0;
  for (const json& one : all["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>() + " " + one["options"].dump());
    const ScheduleOptions options = options_of(one);
    if (one.contains("error") || one["options"].value("warmup_type", "") == "square") {
      EXPECT_NE(config_error(options), "accepted");
      continue;
    }
    const Schedule schedule(options);
    expect_rates(one, schedule);
    ++compared;
    if (!one.contains("betas") || one["options"].value("cycle_momentum", true) == false) {
      EXPECT_FALSE(schedule.momentum(0));
      continue;
    }
    for (std::size_t i = 0; i < one["betas"].size(); ++i) {
      const auto momentum = schedule.momentum(static_cast<std::int64_t>(i));
      ASSERT_TRUE(momentum);
      ASSERT_NEAR(momentum->beta1, one["betas"][i][0].get<double>(), 1e-12) << i;
      ASSERT_EQ(momentum->beta2, one["betas"][i][1].get<double>()) << i;
    }
  }
  EXPECT_EQ(compared, 18U);
}

// accelerate ticks a schedule once for each rank in an optimizer step; here a step is one tick, on
// any number of ranks. Its rates are ours at the number of its ticks.
TEST(Schedule, is_accelerates_at_its_number_of_ticks) {
  const json all = golden("accelerated.json");
  for (const json& one : all["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>() + " on " + one["n"].dump());
    const double lr = one["lr"][0];
    const Schedule schedule(options_of(one));
    EXPECT_NEAR(schedule.rate(lr, 0), one["initial_lr"].get<double>(), 1e-15);
    const std::int64_t a_step = one["split_batches"] == true ? 1 : one["n"].get<std::int64_t>();
    std::int64_t ticks = 0;
    std::int64_t counted = 1;  // theirs counts micro-steps too, where told
    for (std::size_t i = 0; i < one["lrs"].size(); ++i) {
      const bool steps = one["events"][i][0] != 0 && one["events"][i][1] == 0;
      const bool follows = one["step_with_optimizer"] == true;
      for (std::int64_t t = 0; t < (!follows ? 1 : steps ? a_step : 0); ++t) {
        if (one["name"] == "torch_one_cycle" && counted > one["total"]) continue;
        ++ticks;
        ++counted;
      }
      if (follows && one["events"][i][0] == 0 && one["adjust_scheduler"] == true) ++counted;
      EXPECT_EQ(counted, one["step_counts"][i].get<std::int64_t>());
      ASSERT_NEAR(schedule.rate(lr, ticks), one["lrs"][i].get<double>(), 1e-12 * lr) << i;
    }
  }
}

TEST(Schedule, stays_at_the_least_ratio_behind_the_horizon) {
  for (const char* type : {"linear", "cosine", "cosine_with_min_lr"}) {
    const Schedule schedule({type, 10, 100, 0.1});
    EXPECT_DOUBLE_EQ(schedule.rate(2, 10), 2.0);
    EXPECT_NEAR(schedule.rate(2, 55), 1.1, 1e-12);
    for (const std::int64_t step : {100, 101, 150, 1'000'000'000}) {
      EXPECT_NEAR(schedule.rate(2, step), 0.2, 1e-15);
    }
  }
}

TEST(Schedule, never_gives_what_is_no_rate) {
  for (const std::string& type : schedule_types()) {
    if (type == "greedy" || type == "reduce_lr_on_plateau") continue;
    for (const std::int64_t warmup : {1, 2, 7, 50}) {
      const Schedule schedule(
          {.type = type, .warmup_steps = warmup, .total_steps = 20, .min_ratio = 0.25});
      for (std::int64_t step = 0; step < 120; ++step) {
        const double rate = schedule.rate(1, step);
        ASSERT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= 1.0 + 1e-12)
            << type << " " << step << " " << rate;
      }
    }
  }
}

TEST(Schedule, gives_two_groups_rates_in_proportion_of_their_bases) {
  for (const std::string& type : schedule_types()) {
    if (MetricSchedule::is(type)) continue;
    const Schedule proportional({.type = type, .warmup_steps = 5, .total_steps = 50, .base_lr = 2});
    for (std::int64_t step = 0; step < 60; ++step) {
      EXPECT_NEAR(proportional.rate(6, step), 3 * proportional.rate(2, step), 1e-12) << type;
    }
  }
  const Schedule schedule({.type = "one_cycle", .total_steps = 50});
  ASSERT_TRUE(schedule.momentum(0));
  EXPECT_NEAR(schedule.momentum(0)->beta1, 0.95, 1e-12);
  EXPECT_NEAR(schedule.momentum(14)->beta1, 0.85, 1e-12);
}

TEST(Schedule, refuses_what_it_does_not_know) {
  EXPECT_THAT(config_error({.type = "cosin", .total_steps = 10}),
              HasSubstr("did you mean 'cosine'"));
  EXPECT_THAT(config_error({.type = "linear", .warmup_steps = -1}),
              AllOf(HasSubstr("warmup_steps: -1"), HasSubstr("total_steps: 0 is no horizon")));
  EXPECT_THAT(config_error({"linear", 0, 10, 1.5}), HasSubstr("min_lr_ratio"));
  EXPECT_THAT(config_error({"linear", 0, 10, std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("min_lr_ratio"));
  EXPECT_THAT(config_error({.type = "cosine", .total_steps = 5, .options = {{"num_cycle", "2"}}}),
              HasSubstr("did you mean 'num_cycles'"));
  EXPECT_THAT(
      config_error({.type = "cosine", .total_steps = 5, .options = {{"num_cycles", "two"}}}),
      HasSubstr("'two' is no number"));
  EXPECT_THAT(config_error({.type = "linear", .total_steps = 5, .options = {{"power", "2"}}}),
              HasSubstr("it has none"));
  EXPECT_THROW(Schedule({"linear", 0, 10, 0}).rate(1, -1), Error);
}

// share/doc/schedules.md: what a row of its table says.
struct Row {
  std::string type;
  std::string settings;
  std::map<std::string, std::string> options;  // with their defaults; empty where there is none
};

std::vector<Row> documented() {
  std::istringstream page(support::file_content(
      std::filesystem::path(TRIREME_TEST_DATA).parent_path() / "share/doc/schedules.md"));
  std::vector<Row> rows;
  const std::regex code("`([^`=]+)(=([^`]*))?`");
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t second = line.find('|', 1);
    const std::size_t third = line.find('|', second + 1);
    Row row;
    row.settings = line.substr(second, third - second);
    const std::string types = line.substr(0, second);
    const std::string options = line.substr(third);
    const auto end = std::sregex_iterator();
    for (auto it = std::sregex_iterator(options.begin(), options.end(), code); it != end; ++it) {
      row.options[(*it)[1]] = (*it)[3];
    }
    for (auto it = std::sregex_iterator(types.begin(), types.end(), code); it != end; ++it) {
      row.type = (*it)[1];
      rows.push_back(row);
    }
  }
  return rows;
}

// The page knows every type and its settings, and every option that it names is one, with the
// default that it says.
TEST(SchedulePage, says_what_is_so) {
  std::vector<std::string> types;
  for (const Row& row : documented()) {
    SCOPED_TRACE(row.type);
    types.push_back(row.type);
    const ScheduleTraits traits = schedule_traits(row.type);
    const auto says = [&](const char* word) {
      return row.settings.find(word) != std::string::npos;
    };
    EXPECT_EQ(traits.warmup, says("warmup"));
    EXPECT_EQ(traits.total, says("total"));
    EXPECT_EQ(traits.min_ratio, says("ratio"));
    std::map<std::string, std::string> given;
    std::map<std::string, std::string> all;
    for (const auto& [name, value] : row.options) {
      all[name] = value.empty() ? "1e-9" : value;
      if (!value.empty()) given[name] = value;
    }
    if (MetricSchedule::is(row.type)) {
      MetricSchedule plain({.type = row.type, .bases = {1}});
      MetricSchedule explicitly({.type = row.type, .options = given, .bases = {1}});
      for (int i = 0; i < 2000; ++i) {
        const double metric = 2 - i % 700 * 1e-3 + i % 7;
        plain.observe(metric);
        explicitly.observe(metric);
        ASSERT_EQ(plain.state(), explicitly.state());
      }
      continue;
    }
    const auto with = [&](const std::map<std::string, std::string>& options) {
      return Schedule({.type = row.type,
                       .warmup_steps = 30,
                       .total_steps = 5000,
                       .min_ratio = 0.1,
                       .options = options});
    };
    const Schedule plain = with({});
    const Schedule explicitly = with(given);
    with(all);  // names that are none are refused
    for (std::int64_t step = 0; step < 6000; ++step) {
      ASSERT_EQ(plain.rate(1, step), explicitly.rate(1, step)) << step;
    }
  }
  EXPECT_THAT(types, ::testing::UnorderedElementsAreArray(schedule_types()));
}

}  // namespace
}  // namespace trireme::optim
