// Every system call of a save fails, is cut short or is the last that the process makes: afterwards
// there is the old checkpoint or the new one, whole.
#include "lone_writer.hpp"
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

// The hook's calls of one save, in order.
std::vector<std::string> calls_of_a_save(const fs::path& folder, std::int64_t step) {
  std::vector<std::string> calls;
  save_lone(folder, step, 9, [&](std::string_view call, bool done) {
    // The writing thread's calls come between two of the main thread's, which then waits for it.
    calls.push_back(std::string(call) + (done ? " after" : " before"));
    return 0;
  });
  return calls;
}

bool has_remains(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("step-") ||
        entry.path().filename().string().size() != 13) {
      return true;
    }
  }
  return false;
}

// Saves in a child that kills itself at the hook's call number `at`. Returns whether it was killed.
bool save_and_die(const fs::path& folder, std::int64_t step, std::uint64_t save, int at) {
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> count = 0;
    save_lone(folder, step, save, [&](std::string_view, bool) {
      if (count++ == at) ::kill(::getpid(), SIGKILL);
      return 0;
    });
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

TEST(Kill, at_any_call_leaves_the_old_or_the_new_checkpoint) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  int at = 0;
  for (bool killed = true; killed; ++at) {
    fs::remove_all(folder / "step-00000002");
    killed = save_and_die(folder.path(), 2, 2, at);
    const Loaded loaded = load_lone(folder.path(), {1, 2});
    EXPECT_TRUE(loaded.warnings.empty()) << "call " << at << ": " << loaded.warnings[0];
    load_lone(folder.path(), {loaded.step == Step(2) ? 2U : 1U});
  }
  EXPECT_GT(at, 30);
  save_lone(folder.path(), 3, 3);
  EXPECT_FALSE(has_remains(folder.path()));
}

TEST(Kill, while_a_step_is_saved_again_leaves_one_of_the_two) {
  const TempDir folder;
  save_lone(folder.path(), 5, 1);
  int at = 0;
  for (bool killed = true; killed; ++at) {
    killed = save_and_die(folder.path(), 5, 2, at);
    EXPECT_EQ(load_lone(folder.path(), {1, 2}).step, Step(5)) << "call " << at;
  }
  EXPECT_EQ(load_lone(folder.path(), {2}).step, Step(5));
}

TEST(Kill, while_a_step_is_saved_again_without_an_atomic_exchange) {
  const TempDir folder;
  save_lone(folder.path(), 5, 1);
  for (int at = 0; at < 3; ++at) {
    const pid_t child = fork();
    if (child == 0) {
      save_lone(folder.path(), 5, 2, [&](std::string_view call, bool done) {
        if (call == "exchange") return EINVAL;
        if (at == 0 && call == "set-aside" && done) ::kill(::getpid(), SIGKILL);
        if (at == 1 && call == "commit" && done) ::kill(::getpid(), SIGKILL);
        return 0;
      });
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    // The first leaves step 5 under another name only, and must be found all the same.
    EXPECT_EQ(load_lone(folder.path(), {at == 0 ? 1U : 2U}).step, Step(5));
  }
  save_lone(folder.path(), 6, 3);
  EXPECT_FALSE(has_remains(folder.path()));
}

TEST(Failure, of_any_call_is_reported_and_leaves_earlier_checkpoints) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  const auto calls = calls_of_a_save(folder.path(), 2);
  fs::remove_all(folder / "step-00000002");
  std::set<std::string> tried;
  for (const std::string& entry : calls) {
    if (!entry.ends_with(" before")) continue;
    const std::string name = entry.substr(0, entry.find(' '));
    if (!tried.insert(name).second) continue;
    for (const int code : {EIO, ENOSPC}) {
      const Error error = error_of([&] {
        save_lone(folder.path(), 2, 2, [&](std::string_view call, bool done) {
          return !done && call == name ? code : 0;
        });
      });
      EXPECT_EQ(error.kind, ErrorKind::kIo) << name;
      EXPECT_NE(error.message.find(folder.path().string()), std::string::npos) << error.message;
      EXPECT_EQ(error.message.find("errno " + std::to_string(code)) == std::string::npos, false)
          << error.message;
      if (name == "fsync-parent") continue;  // from the rename on, the new one counts
      EXPECT_FALSE(has_remains(folder.path())) << name;
      EXPECT_EQ(load_lone(folder.path(), {1}).step, Step(1)) << name;
    }
  }
  EXPECT_GE(tried.size(), 11U);
  save_lone(folder.path(), 3, 3);
  EXPECT_EQ(load_lone(folder.path(), {3}).step, Step(3));
}

TEST(Failure, interrupted_and_short_writes_are_finished) {
  const TempDir folder;
  for (const int fault : {EINTR, ckpt::kShortWrite}) {
    std::atomic<int> count = 0;
    save_lone(folder.path(), fault + 10, 4, [&](std::string_view call, bool done) {
      const bool hit = !done && (call == "write" || call == "write-manifest") && count++ % 3 != 2;
      return hit ? fault : 0;
    });
    EXPECT_GT(count, 3);
    ckpt::Reader(folder.path() / ckpt::step_folder(Step(fault + 10))).verify();
    load_lone(folder.path(), {4});
  }
}

TEST(Failure, a_call_that_a_signal_interrupts_is_made_again) {
  const TempDir folder;
  for (const std::string_view name : {"open", "write", "fsync", "write-manifest", "fsync-manifest",
                                      "fsync-folder", "fsync-parent"}) {
    std::atomic<int> interrupted = 0;
    save_lone(folder.path(), 7, 3, [&](std::string_view call, bool done) {
      return !done && call == name && interrupted++ % 3 != 2 ? EINTR : 0;
    });
    EXPECT_GE(interrupted, 3) << name;
    EXPECT_EQ(load_lone(folder.path(), {3}).step, Step(7));
  }
}

TEST(Failure, file_systems_without_direct_writes_or_fsync_are_used_and_said) {
  const TempDir folder;
  const auto result = save_lone(folder.path(), 1, 1, [&](std::string_view call, bool done) {
    return !done && call == "fsync" ? ENOTSUP : 0;
  });
  ASSERT_EQ(result.notes.size(), 1U);
  EXPECT_NE(result.notes[0].find("no fsync"), std::string::npos);
  std::atomic<bool> first_open = true;
  std::atomic<bool> first_write = true;
  for (const std::string_view call_to_fail : {"open", "write"}) {
    std::atomic<int> opens = 0;
    std::atomic<int> writes = 0;
    const auto other = save_lone(folder.path(), 2, 2, [&](std::string_view call, bool done) {
      if (done || call != call_to_fail) return 0;
      // Root opens the file twice while it makes it; the third is the direct one.
      if (call == "open") return ++opens == 3 ? EINVAL : 0;
      return ++writes == 1 ? EINVAL : 0;
    });
    ASSERT_EQ(other.notes.size(), 1U) << call_to_fail;
    EXPECT_NE(other.notes[0].find("no O_DIRECT"), std::string::npos);
    EXPECT_EQ(load_lone(folder.path(), {2}).step, Step(2));
  }
}

TEST(Failure, hdf5_prints_nothing_and_its_reason_is_the_cause) {
  const TempDir folder;
  ::testing::internal::CaptureStderr();
  const Error error = error_of([&] {
    save_lone(folder.path(), 1, 1, [&](std::string_view call, bool done) {
      if (call != "create" || done) return 0;
      for (const auto& entry : fs::directory_iterator(folder.path()))
        write_file(entry.path() / "state.h5", "in the way");
      return 0;
    });
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(error.kind, ErrorKind::kIo);
  EXPECT_NE(error.cause.find("unable to create file"), std::string::npos) << error.cause;
}

// A file system of its own, of a few MiB.
class SmallDisk {
 public:
  explicit SmallDisk(const fs::path& at)
      : at_(at), mounted_(::mount("tmpfs", at.c_str(), "tmpfs", 0, "size=6m") == 0) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  fs::path at_;
  bool mounted_;
};

TEST(Failure, a_full_disk_keeps_what_was_there) {
  const TempDir folder;
  const SmallDisk disk(folder.path());
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  save_lone(folder.path(), 1, 1);
  // The second does not fit beside the first.
  const Error error = error_of([&] { save_lone(folder.path(), 2, 2); });
  EXPECT_EQ(error.kind, ErrorKind::kIo);
  EXPECT_NE((error.message + error.cause).find("No space left"), std::string::npos)
      << error.report();
  EXPECT_FALSE(has_remains(folder.path()));
  EXPECT_EQ(load_lone(folder.path(), {1}).step, Step(1));
}

TEST(Folder, a_live_writer_is_refused_and_a_dead_one_cleared) {
  const TempDir folder;
  const fs::path draft = folder / "step-00000007.tmp-0123456789abcdef";
  fs::create_directories(draft);
  fs::create_directories(folder / ".trash-1-step-00000003");
  write_file(draft / "state.h5", "half");
  const int fd = ::open(draft.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const Error error = error_of([&] { save_lone(folder.path(), 8, 1); });
  EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
  EXPECT_TRUE(fs::exists(draft / "state.h5"));
  ::close(fd);
  save_lone(folder.path(), 8, 1);
  EXPECT_FALSE(has_remains(folder.path()));
}

TEST(Folder, keeps_the_newest_complete_ones_and_never_loses_the_one_just_saved) {
  const TempDir folder;
  for (const std::int64_t step : {1, 2, 3}) save_lone(folder.path(), step, 1);
  flip(folder / "step-00000003" / "manifest.json", 20);
  save_lone(folder.path(), 4, 4, {}, 2);
  // 3 is damaged and does not count: 4 and 2 stay, and 3, newer than 2, is nobody's to remove.
  std::vector<std::string> names;
  for (const fs::path& path : ckpt::list(folder.path())) names.push_back(path.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"step-00000004", "step-00000003", "step-00000002"}));
  // A run that went back saves an older step than the newest.
  save_lone(folder.path(), 1, 7, {}, 1);
  EXPECT_TRUE(fs::exists(folder / "step-00000001" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder / "step-00000004" / "manifest.json"));
}

TEST(Folder, a_step_saved_again_is_replaced) {
  const TempDir folder;
  save_lone(folder.path(), 5, 1);
  flip(folder / "step-00000005" / "state.h5", 200000);
  save_lone(folder.path(), 5, 2);
  EXPECT_EQ(load_lone(folder.path(), {2}).step, Step(5));
  EXPECT_FALSE(has_remains(folder.path()));
}

}  // namespace
}  // namespace trireme::testing
