#include "trireme/ckpt/tools.hpp"

#include "support/golden.hpp"

#include "h5py.hpp"
#include "lone_writer.hpp"
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdlib>
#include <limits>
#include <set>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

struct Small {
  std::vector<float> w{1, 2, 3, 4, 5, 6};
  std::vector<std::int64_t> w_shape{2, 3};
  std::string training = R"({"tokens": 5, "epoch": 1})";
  std::string config = "a";
  bool extra_tensor = false;
};

fs::path save_small(const fs::path& folder, std::int64_t step, const Small& small) {
  ckpt::Snapshot snapshot;
  snapshot.tensors.push_back({"/model/w", DType::kFloat32, small.w_shape});
  snapshot.extents.push_back({0, 0, static_cast<std::int64_t>(small.w.size()), small.w.data()});
  const double scale = 0.5;
  if (small.extra_tensor) {
    snapshot.tensors.insert(snapshot.tensors.begin(), {"/scaler/scale", DType::kFloat64, {}});
    snapshot.extents[0].tensor = 1;
    snapshot.extents.push_back({0, 0, 1, &scale});
  }
  snapshot.extra = {{"training", small.training}, {"config", small.config}};
  comm::Communicator comm = lone_communicator();
  return ckpt::save(comm, snapshot, {folder, Step(step), 0});
}

TEST(Hash, depends_on_content_alone) {
  const TempDir a;
  const TempDir b;
  Small other;
  other.config = "quite another configuration";
  other.training = R"({"epoch":1,"tokens":5})";
  const std::string hash = ckpt::content_hash(save_small(a.path(), 3, {}));
  EXPECT_EQ(hash.size(), 32U);
  EXPECT_EQ(ckpt::content_hash(save_small(b.path(), 3, other)), hash);
  EXPECT_TRUE(ckpt::compare(a / "step-00000003", b / "step-00000003").empty());
}

TEST(Hash, changes_with_any_value_shape_counter_or_step) {
  const TempDir folder;
  std::set<std::string> hashes;
  Small zero;
  zero.w[0] = 0.0f;
  Small negative_zero;
  negative_zero.w[0] = -0.0f;
  Small turned;
  turned.w_shape = {3, 2};
  Small counted;
  counted.training = R"({"tokens": 6, "epoch": 1})";
  Small more;
  more.extra_tensor = true;
  for (const Small& small : {Small{}, zero, negative_zero, turned, counted, more}) {
    hashes.insert(ckpt::content_hash(save_small(folder.path(), 3, small)));
  }
  hashes.insert(ckpt::content_hash(save_small(folder.path(), 4, {})));
  EXPECT_EQ(hashes.size(), 7U);
}

TEST(Compare, says_what_differs) {
  const TempDir a;
  const TempDir b;
  Small other;
  other.w[1] = 2.25f;
  other.w[4] = 5.5f;
  other.training = R"({"tokens": 6, "epoch": 1})";
  other.extra_tensor = true;
  const auto differences =
      ckpt::compare(save_small(a.path(), 3, {}), save_small(b.path(), 4, other));
  std::string text;
  for (const auto& [path, what] : differences) text += path + ": " + what + "\n";
  EXPECT_EQ(text,
            "step: 3 and 4\n"
            "/model/w: 2 of 6 elements differ, largest absolute 0.5, first at 1\n"
            "/scaler/scale: only in B\n"
            "extra/training: tokens: 5 and 6\n");
}

TEST(Compare, sees_bits_not_numbers) {
  const TempDir a;
  const TempDir b;
  Small nan;
  nan.w[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(ckpt::compare(save_small(a.path(), 3, nan), save_small(b.path(), 3, nan)).empty());
  Small turned = nan;
  turned.w_shape = {6};
  const auto differences =
      ckpt::compare(save_small(a.path(), 3, nan), save_small(b.path(), 3, turned));
  ASSERT_EQ(differences.size(), 1U);
  EXPECT_EQ(differences[0].what, "shape [2,3] and [6]");
}

TEST(Describe, lists_groups_tensors_and_texts) {
  const TempDir folder;
  const fs::path path = save_lone(folder.path(), 42, 1).path;
  const std::string table = ckpt::describe(path, false);
  EXPECT_NE(table.find("step 42, format 1, written by 1 rank"), std::string::npos) << table;
  EXPECT_NE(table.find("/optimizer/exp_avg"), std::string::npos);
  EXPECT_NE(table.find("[257, 1031]"), std::string::npos);
  const auto json = nlohmann::json::parse(ckpt::describe(path, true));
  EXPECT_EQ(json["step"], 42);
  EXPECT_EQ(json["tensors"].size(), sample_specs().size());
  EXPECT_EQ(json["extra"]["config"], "model: {type: gpt2}\n");
}

TEST(Resolve, accepts_whatever_a_person_has_at_hand) {
  const TempDir run;
  const fs::path checkpoints = run / "checkpoints";
  save_lone(checkpoints, 1, 1);
  const fs::path newest = save_lone(checkpoints, 2, 2).path;
  fs::create_directories(checkpoints / "step-00000003");
  for (const fs::path& given : {run.path(), checkpoints, newest, newest / "state.h5"}) {
    EXPECT_EQ(ckpt::resolve(given), newest) << given;
  }
  EXPECT_EQ(error_of([&] { ckpt::resolve(run / "none"); }).kind, ErrorKind::kConfig);
  EXPECT_EQ(error_of([&] { ckpt::resolve(checkpoints / "step-00000003"); }).kind,
            ErrorKind::kConfig);
}

// What others see of state.h5.
int run(const std::string& command) { return std::system(command.c_str()); }

TEST(Others, h5py_reads_every_dataset_with_its_logical_shape) {
  const std::string interpreter = python_with_h5py();
  if (interpreter.empty()) GTEST_SKIP() << "no Python with h5py";
  const TempDir folder;
  const fs::path path = save_lone(folder.path(), 42, 6).path;
  EXPECT_TRUE(h5py_sees(
      interpreter, {path / "state.h5"}, folder.path(), 6, {{"trireme-format", 1}, {"step", 42}},
      {{"training", R"({"tokens": 5})"}, {"config", "model: {type: gpt2}\n"}, {"empty", ""}}));
}

TEST(Others, h5dump_writes_the_values) {
  if (run("command -v h5dump >/dev/null 2>&1") != 0) GTEST_SKIP() << "no h5dump here";
  const TempDir folder;
  const fs::path path = save_small(folder.path(), 3, {});
  const fs::path out = folder / "out";
  ASSERT_EQ(run(fmt::format("h5dump {} >{} 2>&1", (path / "state.h5").string(), out.string())), 0);
  const std::string text = bytes_of_file(out);
  EXPECT_NE(text.find("(0,0): 1, 2, 3,"), std::string::npos) << text;
  EXPECT_NE(text.find("(1,0): 4, 5, 6"), std::string::npos) << text;
  EXPECT_NE(text.find("trireme-format"), std::string::npos) << text;
  EXPECT_NE(text.find("H5T_IEEE_F32LE"), std::string::npos) << text;
}

TEST(Others, h5diff_sees_what_compare_sees) {
  if (run("command -v h5diff >/dev/null 2>&1") != 0) GTEST_SKIP() << "no h5diff here";
  const TempDir folder;
  Small other;
  other.w[4] = 5.5f;
  const fs::path a = save_small(folder / "a", 3, {}) / "state.h5";
  const fs::path b = save_small(folder / "b", 3, {}) / "state.h5";
  const fs::path c = save_small(folder / "c", 3, other) / "state.h5";
  const auto diff = [&](const fs::path& one, const fs::path& two) {
    return run(fmt::format("h5diff {} {} >/dev/null 2>&1", one.string(), two.string()));
  };
  EXPECT_EQ(diff(a, b), 0);
  EXPECT_NE(diff(a, c), 0);
}

TEST(Others, h5ls_lists_every_dataset) {
  if (run("command -v h5ls >/dev/null 2>&1") != 0) GTEST_SKIP() << "no h5ls here";
  const TempDir folder;
  const fs::path path = save_lone(folder.path(), 1, 1).path;
  const fs::path listing = folder / "listing";
  ASSERT_EQ(run(fmt::format("h5ls -r {} >{} 2>&1", (path / "state.h5").string(), listing.string())),
            0);
  const std::string text = bytes_of_file(listing);
  EXPECT_NE(text.find("Dataset {257, 1031}"), std::string::npos) << text;
  EXPECT_NE(text.find("Dataset {0, 13}"), std::string::npos) << text;
  EXPECT_NE(text.find("Dataset {SCALAR}"), std::string::npos) << text;
}

}  // namespace
}  // namespace trireme::testing
