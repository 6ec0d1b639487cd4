#include "trireme/cluster/command.hpp"

#include <gtest/gtest.h>

namespace trireme::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

CommandResult shell(const std::string& script, milliseconds limit = milliseconds(5000)) {
  return run_command({"sh", "-c", script}, limit);
}

TEST(Command, returns_output_and_code) {
  const CommandResult result = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(result.output, "out\nerr\n");
  EXPECT_EQ(result.code, 3);
  EXPECT_FALSE(result.timed_out || result.good());
  EXPECT_TRUE(shell("true").good());
}

TEST(Command, reads_nothing_from_our_input) { EXPECT_EQ(shell("cat; echo end").output, "end\n"); }

TEST(Command, tells_signals_and_missing_programs) {
  EXPECT_EQ(shell("kill -9 $$").code, 137);
  EXPECT_EQ(run_command({"trireme-no-such-program"}, milliseconds(100)).code, 127);
}

TEST(Command, keeps_no_more_than_a_mebibyte) {
  const CommandResult result = shell("head -c 3000000 /dev/zero");
  EXPECT_TRUE(result.good());
  EXPECT_LT(result.output.size(), (1U << 20U) + 4096);
}

TEST(Command, ends_at_its_deadline_with_all_that_it_started) {
  const auto start = steady_clock::now();
  const CommandResult result = shell("echo started; sleep 60 & sleep 60", milliseconds(200));
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.good());
  EXPECT_EQ(result.output, "started\n");
  EXPECT_LT(steady_clock::now() - start, milliseconds(3000));
  // Closing its outputs does not save it.
  EXPECT_TRUE(shell("exec >&- 2>&-; sleep 60", milliseconds(200)).timed_out);
  EXPECT_LT(steady_clock::now() - start, milliseconds(6000));
}

}  // namespace
}  // namespace trireme::cluster
