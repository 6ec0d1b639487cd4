#include "trireme/train/run_folder.hpp"

#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(Resume, is_none_auto_or_a_path) {
  EXPECT_EQ(Resume::parse("").mode, Resume::Mode::kNone);
  EXPECT_EQ(Resume::parse("none").mode, Resume::Mode::kNone);
  EXPECT_EQ(Resume::parse("auto").mode, Resume::Mode::kAuto);
  const Resume path = Resume::parse("runs/a/checkpoints/step-00000007");
  EXPECT_EQ(path.mode, Resume::Mode::kPath);
  EXPECT_EQ(path.path, "runs/a/checkpoints/step-00000007");
  EXPECT_EQ(Resume::parse("Auto").mode, Resume::Mode::kPath) << "a folder may be called so";
}

class Folder : public ::testing::Test {
 protected:
  config::Run run_named(const std::string& name) const {
    config::Run run;
    run.dir = temp.path().string();
    run.name = name;
    return run;
  }
  static void touch(const fs::path& path) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "{}\n";
  }

  testing::TempDir temp;
  RunFolder folder{run_named("mine")};
};

TEST_F(Folder, has_the_places_of_the_interface) {
  EXPECT_EQ(folder.root, temp / "mine");
  EXPECT_EQ(folder.checkpoints(), temp / "mine/checkpoints");
  EXPECT_EQ(folder.metrics(), temp / "mine/metrics.jsonl");
  EXPECT_EQ(folder.config(), temp / "mine/config.yaml");
  EXPECT_EQ(folder.log(12), temp / "mine/log/rank-00012.log");
}

TEST_F(Folder, is_made_when_it_is_not_there) {
  EXPECT_FALSE(folder.holds_run());
  folder.prepare({});
  EXPECT_TRUE(fs::is_directory(folder.root));
  EXPECT_TRUE(fs::is_empty(folder.root)) << "the trial write leaves nothing";
  EXPECT_NO_THROW(folder.prepare({})) << "an empty folder holds no run";
}

TEST_F(Folder, refuses_a_new_run_where_one_is) {
  for (const fs::path& sign : {folder.metrics(), folder.checkpoints() / "step-00000001/manifest.json"}) {
    fs::remove_all(folder.root);
    touch(sign);
    EXPECT_TRUE(folder.holds_run());
    try {
      folder.prepare({});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kConfig);
      EXPECT_THAT(error.message, HasSubstr(folder.root.string()));
      EXPECT_THAT(error.hint, HasSubstr("--resume auto"));
      EXPECT_THAT(error.hint, HasSubstr("run.name"));
    }
    EXPECT_TRUE(fs::exists(sign));
  }
}

TEST_F(Folder, lets_a_run_continue) {
  touch(folder.metrics());
  EXPECT_NO_THROW(folder.prepare(Resume::parse("auto")));
  EXPECT_NO_THROW(folder.prepare(Resume::parse("somewhere/step-00000001")));
  EXPECT_NO_THROW(RunFolder(run_named("other")).prepare(Resume::parse("auto"))) << "auto may be a first start";
}

TEST_F(Folder, that_cannot_be_written_is_an_io_error) {
  touch(temp / "file");
  try {
    RunFolder(run_named("file/below")).prepare({});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_THAT(error.message, HasSubstr("file/below"));
    EXPECT_THAT(error.hint, HasSubstr("run.dir"));
  }
  // A file in the folder's place, even for root.
  EXPECT_THROW(RunFolder(run_named("file")).prepare(Resume::parse("auto")), Error);
}

}  // namespace
}  // namespace trireme::train
