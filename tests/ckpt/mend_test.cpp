// What a person does about damage and about too many checkpoints: find it, mend it, remove what is
// no longer wanted.
#include "trireme/ckpt/tools.hpp"

#include "ckpt/manifest.hpp"
#include "lone_writer.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Checkpoints 1 and 2, and a copy of 2 in another folder; tests damage 2.
class Mend : public ::testing::Test {
 protected:
  Mend() {
    save_lone(folder_ / "run", 1, 1);
    save_lone(folder_ / "run", 2, 2);
    fs::create_directories(copy_);
    fs::copy(hurt_, copy_, fs::copy_options::recursive);
    manifest_ = ckpt::read_manifest(hurt_);
  }

  void hurt(const std::string& dataset, std::uint64_t at) { hurt_in(hurt_, dataset, at); }
  void hurt_in(const fs::path& checkpoint, const std::string& dataset, std::uint64_t at) {
    flip(checkpoint / "state.h5",
         manifest_.files[0]
                 .layout.offsets[*ckpt::Reader(folder_ / "run" / "step-00000001").find(dataset)] +
             at);
  }
  ckpt::Salvaged salvage(const std::vector<fs::path>& copies) {
    comm::Communicator comm = lone_communicator();
    return ckpt::salvage(comm, hurt_, copies, folder_ / "saved");
  }

  TempDir folder_;
  fs::path hurt_ = folder_ / "run" / "step-00000002";
  fs::path copy_ = folder_ / "stage" / "step-00000002";
  ckpt::Manifest manifest_;
};

TEST_F(Mend, a_good_checkpoint_is_good) {
  std::int64_t last = 0;
  std::int64_t all = 0;
  const auto found = ckpt::examine(hurt_, {}, [&](Bytes done, Bytes total) {
    EXPECT_GT(done.value, last);
    last = done.value;
    all = total.value;
  });
  EXPECT_TRUE(found.good());
  EXPECT_EQ(last, all);
  EXPECT_EQ(json::parse(ckpt::to_text(found, true))["good"], true);
}

TEST_F(Mend, every_damage_is_named_with_file_dataset_block_and_offset) {
  hurt("/big", 2 * ckpt::kCrcBlock + 5);
  hurt("/model/h.0.bias", 27);
  const auto found = ckpt::examine(hurt_);
  ASSERT_EQ(found.damages.size(), 2U);
  const std::size_t big = *ckpt::Reader(hurt_).find("/big");
  const auto at_big = std::find_if(found.damages.begin(), found.damages.end(),
                                   [](const auto& damage) { return damage.dataset == "/big"; });
  ASSERT_NE(at_big, found.damages.end());
  EXPECT_EQ(at_big->block, 2U);
  EXPECT_EQ(at_big->offset, manifest_.files[0].layout.offsets[big] + 2 * ckpt::kCrcBlock);
  EXPECT_EQ(at_big->file, (hurt_ / "state.h5").string());
  EXPECT_EQ(found.good_neighbour, folder_ / "run" / "step-00000001");
  EXPECT_TRUE(found.good_copies.empty());
  const json said = json::parse(ckpt::to_text(found, true));
  EXPECT_EQ(said["damages"].size(), 2U);
  EXPECT_EQ(said["good"], false);
  const std::string text = ckpt::to_text(found, false);
  EXPECT_NE(text.find("dataset /big is damaged in block 2"), std::string::npos) << text;
  EXPECT_NE(text.find("another checkpoint is good: "), std::string::npos) << text;
}

TEST_F(Mend, a_copy_is_good_where_it_is_right_even_if_it_is_hurt_elsewhere) {
  hurt("/big", 5);
  hurt_in(copy_, "/rng/state", 100);
  fs::create_directories(folder_ / "other" / "step-00000002");
  fs::copy(folder_ / "run" / "step-00000001", folder_ / "other" / "step-00000002",
           fs::copy_options::recursive);
  const auto found = ckpt::examine(hurt_, {folder_ / "stage", folder_ / "other"});
  // The one in other/ has the name but is of another save.
  EXPECT_EQ(found.good_copies, std::vector<fs::path>{copy_});
  hurt_in(copy_, "/big", 5);
  EXPECT_TRUE(ckpt::examine(hurt_, {folder_ / "stage"}).good_copies.empty());
}

TEST_F(Mend, salvage_saves_all_tensors_but_the_damaged_ones) {
  hurt("/big", 5);
  const auto saved = salvage({});
  ASSERT_EQ(saved.lost.size(), 1U);
  EXPECT_EQ(saved.lost[0].dataset, "/big");
  EXPECT_EQ(saved.checkpoint, folder_ / "saved" / "step-00000002");
  ckpt::Reader(saved.checkpoint).verify();
  const auto differences = ckpt::compare(copy_, saved.checkpoint);
  ASSERT_EQ(differences.size(), 1U);
  EXPECT_EQ(differences[0].path, "/big");
  EXPECT_EQ(differences[0].what, "only in A");
  EXPECT_EQ(json::parse(ckpt::to_text(saved, true))["complete"], false);
}

TEST_F(Mend, two_halves_make_a_whole) {
  hurt("/big", 5);
  hurt_in(copy_, "/big", 2 * ckpt::kCrcBlock + 5);
  hurt_in(copy_, "/rng/state", 5);
  const auto saved = salvage({folder_ / "stage"});
  EXPECT_TRUE(saved.lost.empty());
  EXPECT_EQ(saved.mended, std::vector<std::string>{"/big"});
  save_lone(folder_ / "again", 2, 2);
  EXPECT_EQ(ckpt::content_hash(saved.checkpoint),
            ckpt::content_hash(folder_ / "again" / "step-00000002"));
}

TEST_F(Mend, a_damaged_superblock_costs_texts_alone) {
  flip(hurt_ / "state.h5", 9);
  const auto saved = salvage({});
  std::set<std::string> lost;
  for (const ckpt::Damage& damage : saved.lost) lost.insert(damage.dataset);
  EXPECT_EQ(lost, (std::set<std::string>{"extra/config", "extra/training"}))
      << ckpt::to_text(saved, false);
  EXPECT_EQ(saved.kept.size(), manifest_.tensors.size() + 1) << "and the empty text";
  fs::remove_all(folder_ / "saved");
  EXPECT_TRUE(salvage({copy_}).lost.empty());
}

TEST_F(Mend, a_missing_or_cut_file_is_mended_from_the_copy) {
  fs::resize_file(hurt_ / "state.h5", fs::file_size(hurt_ / "state.h5") - ckpt::kCrcBlock);
  const auto cut = salvage({});
  ASSERT_EQ(cut.lost.size(), 1U);
  EXPECT_EQ(cut.lost[0].dataset, "/big");
  fs::remove_all(folder_ / "saved");
  fs::remove(hurt_ / "state.h5");
  EXPECT_EQ(error_of([&] { salvage({}); }).kind, ErrorKind::kCorrupt);
  EXPECT_TRUE(salvage({copy_}).lost.empty());
  fs::remove_all(folder_ / "saved");
  // Without a manifest, the step tells which copy is meant.
  fs::remove(hurt_ / "manifest.json");
  EXPECT_FALSE(ckpt::examine(hurt_).good());
  EXPECT_TRUE(salvage({folder_ / "stage"}).lost.empty());
}

TEST_F(Mend, salvage_replaces_nothing) {
  salvage({});
  EXPECT_EQ(error_of([&] { salvage({}); }).kind, ErrorKind::kConfig);
}

// Returns the names of what the plan keeps.
std::vector<std::string> kept(const fs::path& folder, const ckpt::KeepRules& rules) {
  std::vector<std::string> names;
  for (const ckpt::PruneEntry& entry : ckpt::plan_pruning(folder, rules)) {
    if (entry.keep) names.push_back(entry.path.filename());
  }
  return names;
}

TEST(Prune, keeps_what_any_rule_names_and_always_the_newest) {
  const TempDir folder;
  for (const std::int64_t step : {10, 20, 25, 30, 35}) save_lone(folder.path(), step, 1);
  using Names = std::vector<std::string>;
  EXPECT_EQ(kept(folder.path(), {1, 0, {}, true}), (Names{"step-00000035"}));
  EXPECT_EQ(kept(folder.path(), {0, 0, {}, true}), (Names{"step-00000035"}));
  EXPECT_EQ(kept(folder.path(), {2, 10, {}, true}),
            (Names{"step-00000035", "step-00000030", "step-00000020", "step-00000010"}));
  EXPECT_EQ(kept(folder.path(), {1, 0, {Step(25)}, true}),
            (Names{"step-00000035", "step-00000025"}));
  const auto plan = ckpt::plan_pruning(folder.path(), {2, 0, {}, true});
  EXPECT_EQ(ckpt::list(folder.path()).size(), 5U) << "a plan changes nothing";
  ckpt::carry_out(plan);
  EXPECT_EQ(ckpt::list(folder.path()).size(), 2U);
  EXPECT_EQ(json::parse(ckpt::to_text(plan, true))["entries"].size(), 5U);
}

TEST(Prune, a_damaged_one_neither_counts_nor_goes_unasked) {
  const TempDir folder;
  for (const std::int64_t step : {1, 2, 3}) save_lone(folder.path(), step, 1);
  flip(folder / "step-00000003" / "manifest.json", 30);
  using Names = std::vector<std::string>;
  EXPECT_EQ(kept(folder.path(), {1, 0, {}, true}), (Names{"step-00000003", "step-00000002"}));
  EXPECT_EQ(kept(folder.path(), {1, 0, {}, false}), (Names{"step-00000002"}));
}

TEST(Prune, remains_go_unless_their_job_lives_or_they_stand_in_for_a_step) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  save_lone(folder.path(), 2, 1);
  fs::rename(folder / "step-00000001", folder / "step-00000001.old-ab");
  const fs::path draft = folder / "step-00000003.tmp-cd";
  fs::create_directories(draft);
  fs::create_directories(folder / ".trash-1-step-00000000");
  const auto plan = ckpt::plan_pruning(folder.path(), {1, 0, {}, true});
  const int fd = ::open(draft.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_EQ(error_of([&] { ckpt::carry_out(plan); }).kind, ErrorKind::kEnvironment);
  EXPECT_TRUE(fs::exists(folder / ".trash-1-step-00000000")) << "nothing at all is removed";
  ::close(fd);
  ckpt::carry_out(plan);
  EXPECT_FALSE(fs::exists(draft));
  EXPECT_FALSE(fs::exists(folder / ".trash-1-step-00000000"));
  EXPECT_TRUE(fs::exists(folder / "step-00000001.old-ab" / "manifest.json"));
}

TEST(Prune, what_cannot_be_renamed_stays_whole) {
  const TempDir folder;
  save_lone(folder.path(), 1, 1);
  save_lone(folder.path(), 2, 2);
  const auto plan = ckpt::plan_pruning(folder.path(), {1, 0, {}, true});
  const Error error = error_of([&] {
    ckpt::carry_out(plan, [](std::string_view, bool done) { return done ? 0 : EACCES; });
  });
  EXPECT_EQ(error.kind, ErrorKind::kIo);
  ckpt::Reader(folder / "step-00000001").verify();
}

}  // namespace
}  // namespace trireme::testing
