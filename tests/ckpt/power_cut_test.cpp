// Power fails at any moment of a save, and the disk keeps what was made durable and any part of the
// rest: afterwards there is the old checkpoint or the new one, and from the return of the save on
// the new one.
#include "trireme/base/random.hpp"

#include "lone_writer.hpp"
#include "recorded_files.hpp"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

// The ways in which a disk may keep more than it promised.
std::vector<Luck> lucks(std::uint64_t key) {
  const auto dice = [key](std::uint64_t salt) {
    return [key, salt, count = std::uint64_t{0}]() mutable {
      return philox(mix(key, salt), count++)[0];
    };
  };
  const auto none = [](std::size_t) { return std::size_t{0}; };
  const auto all = [](std::size_t pending) { return pending; };
  std::vector<Luck> ways{{none, [] { return false; }},
                         {all, [] { return true; }},
                         {all, [] { return false; }},
                         {none, [] { return true; }}};
  for (std::uint64_t salt = 0; salt < 3; ++salt) {
    ways.push_back({[roll = dice(salt)](std::size_t pending) mutable {
                      return static_cast<std::size_t>(roll()) % (pending + 1);
                    },
                    [roll = dice(salt + 10)]() mutable { return roll() % 2 == 0; }});
  }
  return ways;
}

// Two of the ways in turn, so that all come up over a save; TRIREME_POWER_CUTS=all takes all of them
// each time.
std::vector<Luck> lucks_at(std::size_t count) {
  std::vector<Luck> ways = lucks(count);
  if (std::getenv("TRIREME_POWER_CUTS") != nullptr) return ways;
  return {ways[2 * count % ways.size()], ways[(2 * count + 1) % ways.size()]};
}

// Cuts the power after every operation of `save`. `old` and `fresh` are the saves
// whose values count before and after; returns how many states were tried.
std::size_t cut_everywhere(const fs::path& folder, const std::function<void()>& save,
                           std::uint64_t old, std::uint64_t fresh) {
  const TempDir before;
  fs::copy(folder, before.path(), fs::copy_options::recursive);
  const auto operations = record(folder, save);
  std::size_t states = 0;
  for (std::size_t count = 0; count <= operations.size(); ++count) {
    for (const Luck& luck : lucks_at(count)) {
      const TempDir after;
      after_power_cut(operations, count, luck, before.path(), after.path());
      const bool returned = count == operations.size();
      load_lone(after.path(), returned ? std::vector{fresh} : std::vector{old, fresh});
      if (::testing::Test::HasFailure()) {
        ADD_FAILURE() << "power cut after operation " << count << " of " << operations.size();
        return states;
      }
      // Whatever is left, the next save gets over it.
      if (++states % 16 == 0) {
        save_lone(after.path(), 9, 9);
        EXPECT_EQ(load_lone(after.path(), {9}).step, Step(9));
      }
    }
  }
  return states;
}

TEST(PowerCut, during_a_save_leaves_the_old_or_the_new_checkpoint) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  const std::size_t states = cut_everywhere(
      folder.path(), [&] { save_lone(folder.path(), 2, 2); }, 1, 2);
  EXPECT_GT(states, 60U);
}

TEST(PowerCut, while_the_oldest_checkpoint_goes_leaves_the_new_one) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  cut_everywhere(
      folder.path(), [&] { save_lone(folder.path(), 2, 2, {}, 1); }, 1, 2);
}

TEST(PowerCut, while_a_step_is_replaced_leaves_one_of_the_two) {
  const TempDir folder;
  save_lone(folder.path(), 5, 1);
  cut_everywhere(
      folder.path(), [&] { save_lone(folder.path(), 5, 2); }, 1, 2);
}

TEST(PowerCut, while_a_step_is_replaced_without_an_atomic_exchange) {
  const TempDir folder;
  save_lone(folder.path(), 5, 1);
  const auto save = [&] {
    save_lone(folder.path(), 5, 2, [](std::string_view call, bool done) {
      return !done && call == "exchange" ? EINVAL : 0;
    });
  };
  cut_everywhere(folder.path(), save, 1, 2);
}

TEST(PowerCut, the_first_save_leaves_nothing_or_a_whole_checkpoint) {
  const TempDir parent;
  const TempDir before;
  const fs::path run = parent / "run";
  const auto operations = record(parent.path(), [&] { save_lone(run, 1, 1); });
  for (std::size_t count = 0; count <= operations.size(); ++count) {
    for (const Luck& luck : lucks_at(count)) {
      const TempDir after;
      after_power_cut(operations, count, luck, before.path(), after.path());
      if (ckpt::list(after / "run").empty()) {
        EXPECT_LT(count, operations.size()) << "the save had returned";
        continue;
      }
      EXPECT_EQ(load_lone(after / "run", {1}).step, Step(1)) << count;
    }
  }
}

// The proof that the tests above can fail.
TEST(PowerCut, without_its_fsyncs_a_save_would_be_lost) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  const TempDir before;
  fs::copy(folder.path(), before.path(), fs::copy_options::recursive);
  const auto all = record(folder.path(), [&] { save_lone(folder.path(), 2, 2); });
  for (const bool of_folders : {false, true}) {
    std::vector<FileOperation> operations;
    for (const FileOperation& operation : all) {
      const bool sync = operation.kind == FileOperation::Kind::kSync;
      const bool folders = operation.path.filename() != "state.h5" &&
                           operation.path.filename() != "manifest.json.tmp";
      if (!sync || folders != of_folders) operations.push_back(operation);
    }
    EXPECT_LT(operations.size(), all.size());
    const TempDir after;
    const Luck luck{[](std::size_t pending) { return pending; }, [] { return false; }};
    const Luck unlucky{[](std::size_t) { return std::size_t{0}; }, [] { return true; }};
    after_power_cut(operations, operations.size(), of_folders ? unlucky : luck, before.path(),
                    after.path());
    const Loaded loaded = load_lone(after.path(), {1});
    EXPECT_EQ(loaded.step, Step(1)) << "the new checkpoint is not there, or damaged";
  }
}

TEST(PowerCut, the_record_is_the_whole_truth) {
  const TempDir folder;
  const TempDir before;
  const auto operations = record(folder.path(), [&] {
    save_lone(folder.path(), 1, 1);
    save_lone(folder.path(), 2, 2, {}, 1);
  });
  const TempDir after;
  after_power_cut(operations, operations.size(), lucks(0)[1], before.path(), after.path());
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    const fs::path name = fs::relative(entry.path(), folder.path());
    files.insert(name);
    if (entry.is_regular_file()) {
      EXPECT_TRUE(bytes_of_file(entry.path()) == bytes_of_file(after / name)) << name;
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(after.path()))
    EXPECT_EQ(files.erase(fs::relative(entry.path(), after.path())), 1U) << entry.path();
  EXPECT_TRUE(files.empty());
}

}  // namespace
}  // namespace trireme::testing
