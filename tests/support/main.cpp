// The main of every GoogleTest program here, with and without ranks.
//
// Rank 0 prints GoogleTest's usual lines; the others stay silent until something fails, and then name themselves. A
// failure on any rank fails the test on all. `--hang-rank N` parks that rank before the first test and prints its pid,
// for `gdb -p`. Exit codes: 0 passed, 1 failed, 77 every test was skipped, 124 the watchdog ended a hang.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "support/watchdog.hpp"
#include "support/world.hpp"

namespace {

using ::testing::TestInfo;
using ::testing::TestPartResult;
using ::testing::UnitTest;

class Watch final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const TestInfo& info) override {
    trireme::testing::watch(std::string(info.test_suite_name()) + "." + info.name());
  }
  void OnTestEnd(const TestInfo&) override { trireme::testing::watch(""); }
};

// What a rank other than 0 prints: failures only, each with its rank, each in one write so that ranks do not mix.
class FailuresOfRank final : public ::testing::EmptyTestEventListener {
 public:
  explicit FailuresOfRank(int rank) : rank_(rank) {}

 private:
  void OnTestStart(const TestInfo& info) override {
    test_ = std::string(info.test_suite_name()) + "." + info.name();
  }
  void OnTestPartResult(const TestPartResult& result) override {
    if (!result.failed()) return;
    const std::string where = result.file_name() == nullptr ? "unknown file" : result.file_name();
    const std::string text = "[rank " + std::to_string(rank_) + "] " + test_ + " failed at " + where +
                             ":" + std::to_string(result.line_number()) + "\n" + result.message() +
                             "\n";
    std::fputs(text.c_str(), stderr);
  }

  int rank_;
  std::string test_ = "set-up";
};

// Removes `--hang-rank N` from the arguments; returns N, or -1.
int take_hang_rank(int* argc, char** argv) {
  int rank = -1;
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    if (std::strcmp(argv[i], "--hang-rank") == 0 && i + 1 < *argc) {
      rank = std::atoi(argv[++i]);
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  return rank;
}

void park() {
  std::fprintf(stderr, "parked: gdb -p %d, then `set var go = 1` and `continue`\n",
               static_cast<int>(getpid()));
  volatile int go = 0;
  while (go == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

bool everything_skipped() {
  const UnitTest& all = *UnitTest::GetInstance();
  return all.test_to_run_count() > 0 && all.skipped_test_count() == all.test_to_run_count();
}

}  // namespace

int main(int argc, char** argv) {
  const int hang_rank = take_hang_rank(&argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  auto world = trireme::testing::make_world(&argc, &argv);
  if (hang_rank == world->rank()) park();
  if (hang_rank < 0) trireme::testing::start_watchdog(world->rank());

  auto& listeners = UnitTest::GetInstance()->listeners();
  if (world->rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new FailuresOfRank(world->rank()));
  }
  listeners.Append(new Watch);

  int code = RUN_ALL_TESTS();
  if (code == 0 && everything_skipped()) code = 77;
  return world->agree(code);
}
