// A writer that is killed at any time, again and again: every save that had returned is there
// afterwards, or a newer one, whole. TRIREME_KILL_RUNS says how many times (500 for the full proof).
#include "trireme/base/random.hpp"

#include "lone_writer.hpp"
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <thread>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::microseconds;

std::uint64_t runs() {
  const char* wanted = std::getenv("TRIREME_KILL_RUNS");
  return wanted == nullptr ? 40 : std::strtoull(wanted, nullptr, 10);
}

// Saves one step after the other and writes the number of each that is done to `fd`. Waits a little
// between system calls, so that a kill hits any of them.
[[noreturn]] void save_forever(const fs::path& folder, std::int64_t step, std::uint64_t run,
                               int fd) {
  std::atomic<std::uint64_t> count = 0;
  for (;; ++step) {
    save_lone(
        folder, step, static_cast<std::uint64_t>(step),
        [&](std::string_view, bool) {
          std::this_thread::sleep_for(microseconds(philox(run, count++)[0] % 400));
          return 0;
        },
        2);
    if (::write(fd, &step, sizeof(step)) != sizeof(step)) ::_exit(1);
  }
}

// Returns the last number that was written to the pipe, or `otherwise`.
std::int64_t last_of(int fd, std::int64_t otherwise) {
  std::int64_t step = otherwise;
  while (::read(fd, &step, sizeof(step)) == sizeof(step)) {
  }
  return step;
}

// Lets a writer go on from `done` and kills it after a random time. Returns the last step that it
// had saved.
std::int64_t save_until_killed(const fs::path& folder, std::int64_t done, std::uint64_t run) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    save_forever(folder, done + 1, run, ends[1]);
  }
  ::close(ends[1]);
  std::this_thread::sleep_for(microseconds(philox(run, 1'000'000)[0] % 120'000));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
  const std::int64_t last = last_of(ends[0], done);
  ::close(ends[0]);
  return last;
}

TEST(Kill, at_random_times_loses_no_checkpoint_that_was_saved) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  std::int64_t done = 1;
  std::uint64_t during_a_save = 0;
  for (std::uint64_t run = 0; run < runs(); ++run) {
    done = save_until_killed(folder.path(), done, run);
    std::size_t entries = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++entries;
    during_a_save += entries > ckpt::list(folder.path()).size();
    const auto next = static_cast<std::uint64_t>(done + 1);
    const Loaded loaded = load_lone(folder.path(), {next - 1, next});
    ASSERT_TRUE(loaded.step.has_value()) << "run " << run;
    ASSERT_GE(loaded.step->value, done) << "run " << run;
    ASSERT_LE(loaded.step->value, done + 1) << "run " << run;
    ASSERT_TRUE(loaded.warnings.empty()) << "run " << run << ": " << loaded.warnings[0];
    load_lone(folder.path(), {static_cast<std::uint64_t>(loaded.step->value)});
    ASSERT_FALSE(HasFailure()) << "run " << run;
    // What was committed counts, even if the writer did not live to say so.
    done = loaded.step->value;
  }
  RecordProperty("steps", static_cast<int>(done));
  EXPECT_GT(during_a_save, runs() / 4) << "most kills hit a save";
  std::printf("%llu kills, %llu of them during a save, %lld steps saved, none lost\n",
              static_cast<unsigned long long>(runs()),
              static_cast<unsigned long long>(during_a_save), static_cast<long long>(done));
}

}  // namespace
}  // namespace trireme::testing
