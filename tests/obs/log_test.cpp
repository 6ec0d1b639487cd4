#include "trireme/obs/log.hpp"

#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"
#include "trireme/obs/table.hpp"

#include "files.hpp"
#include <gtest/gtest.h>

namespace trireme::obs {
namespace {

using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

TEST(Log, speaks_on_standard_error_only_and_without_colour_in_a_pipe) {
  CaptureStdout();
  CaptureStderr();
  Log log(0, true);
  log.info("starting");
  log.warn("slow disk");
  log.error("no {} room");
  log.error("error (config): x");
  log.print("  as it is\n");
  log.write(Level::kDebug, "details");
  log.flush();
  EXPECT_EQ(GetCapturedStderr(),
            "starting\nwarning: slow disk\nerror: no {} room\nerror (config): x\n  as it is\n");
  EXPECT_EQ(GetCapturedStdout(), "");
}

TEST(Log, is_silent_on_the_other_ranks_but_keeps_their_file) {
  const testing::TempDir folder;
  const auto file = folder / "log/deep/rank-00003.log";
  CaptureStderr();
  {
    Log log(3, false);
    log.info("before there is a file");
    log.open(file);
    log.info("step {} 100% %v");
    log.write(Level::kDebug, "details");
    log.warn("late");
    log.print("banner\n");
  }
  EXPECT_EQ(GetCapturedStderr(), "");
  const std::string text = content(file);
  EXPECT_NE(text.find(" rank 3 info: step {} 100% %v\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" rank 3 debug: details\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" rank 3 warning: late\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("banner"), std::string::npos) << text;
}

TEST(Log, appends_to_the_file_of_an_earlier_run) {
  const testing::TempDir folder;
  for (int run = 0; run < 2; ++run)
    Log(0, false, folder / "a.log").info("run " + std::to_string(run));
  const std::string text = content(folder / "a.log");
  EXPECT_NE(text.find("run 0"), std::string::npos);
  EXPECT_NE(text.find("run 1"), std::string::npos);
}

TEST(Log, has_a_line_in_the_file_as_soon_as_it_is_said) {
  const testing::TempDir folder;
  Log log(0, false, folder / "a.log");
  log.info("now");
  EXPECT_NE(content(folder / "a.log").find("now"), std::string::npos);
}

TEST(Log, names_a_file_that_cannot_be_opened) {
  try {
    Log log(0, false, "/proc/nowhere/x.log");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_NE(error.message.find("/proc/nowhere"), std::string::npos) << error.message;
  }
  EXPECT_THROW(Log(0, false, "/proc"), Error);
}

TEST(Log, goes_on_when_the_disk_is_full) {
  CaptureStderr();
  {
    Log log(0, false, "/dev/full");
    log.info("lost");
  }
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST(Table, aligns_values_under_a_title) {
  EXPECT_EQ(aligned("Plan", {{"model", "gpt2"}, {"parameters", "10.8 M"}}),
            "Plan\n  model       gpt2\n  parameters  10.8 M\n");
  EXPECT_EQ(aligned("", {{"a", ""}, {"caf\xC3\xA9", "x\ny"}}),
            "  a\n  caf\xC3\xA9  x\n        y\n");
  EXPECT_EQ(aligned("empty", {}), "empty\n");
}

TEST(Table, puts_numbers_to_the_right) {
  EXPECT_EQ(columns({{"unit", "size"}, {"block", "9"}, {"head", "1200"}}),
            "unit   size\nblock     9\nhead   1200\n");
  EXPECT_EQ(columns({{"a", "b"}, {"x"}}), "a  b\nx\n");
  EXPECT_EQ(columns({}), "");
}

}  // namespace
}  // namespace trireme::obs
