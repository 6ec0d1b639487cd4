#include "trireme/train/stop.hpp"

#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>

namespace trireme::train {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TEST(StopRequest, is_made_by_a_signal_of_its_list) {
  const StopRequest stop({"USR1", "TERM"}, std::nullopt, 0);
  EXPECT_FALSE(stop.requested());
  std::raise(SIGUSR1);
  EXPECT_TRUE(stop.requested());
  EXPECT_EQ(stop.reason(), "signal USR1");
  std::raise(SIGTERM);
  EXPECT_EQ(stop.reason(), "signal TERM");
}

TEST(StopRequest, is_made_by_the_first_control_c_though_it_is_not_listed) {
  const StopRequest stop({"USR1"}, std::nullopt, 0);
  std::raise(SIGINT);
  EXPECT_TRUE(stop.requested());
  EXPECT_EQ(stop.reason(), "signal INT");
}

TEST(StopRequestDeathTest, ends_the_process_at_the_second_control_c) {
  EXPECT_EXIT(
      {
        const StopRequest stop({}, std::nullopt, 0);
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopRequest, does_not_remember_the_one_before) {
  {
    const StopRequest stop({"USR1"}, std::nullopt, 0);
    std::raise(SIGUSR1);
    EXPECT_TRUE(stop.requested());
  }
  EXPECT_FALSE(StopRequest({"USR1"}, std::nullopt, 0).requested());
}

TEST(StopRequestDeathTest, gives_the_signals_back) {
  EXPECT_EXIT(
      {
        { const StopRequest stop({"USR1"}, std::nullopt, 0); }
        std::raise(SIGUSR1);
      },
      ::testing::KilledBySignal(SIGUSR1), "");
}

TEST(StopRequest, comes_so_long_before_the_deadline) {
  const StopRequest later({}, unix_now() + 1000, 100);
  EXPECT_FALSE(later.requested());
  EXPECT_EQ(later.reason(), "another rank's request");
  const StopRequest now({}, unix_now() + 95.4, 100);
  EXPECT_TRUE(now.requested());
  EXPECT_EQ(now.reason(), "the time limit in 95 s");
}

TEST(StopRequest, knows_its_signals) {
  for (const char* name : {"USR1", "USR2", "TERM", "INT", "HUP", "XCPU", "CONT"}) {
    EXPECT_NO_THROW(StopRequest({name}, std::nullopt, 0)) << name;
  }
  for (const char* name : {"KILL", "usr1", "SIGTERM", ""}) {
    try {
      const StopRequest stop({name}, std::nullopt, 0);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kConfig);
      EXPECT_THAT(error.message, HasSubstr("'" + std::string(name) + "'"));
    }
  }
}

}  // namespace
}  // namespace trireme::train
