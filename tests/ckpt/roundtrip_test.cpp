// What N ranks write, M ranks read.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/tools.hpp"

#include "world_folder.hpp"
#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

using Folder = WorldFolder;

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Roundtrip, any_rank_count_reads_what_any_other_wrote) {
  const Folder folder;
  comm::Communicator& world = CommWorld::get();
  const int me = static_cast<int>(world.rank().value);
  for (int writers = 1; writers <= world.size(); ++writers) {
    comm::Communicator writing = world.split(me < writers ? 0 : 1, me, "writers");
    if (me < writers) save_sample(writing, folder.path(), Deal::kEven, writers);
    world.barrier("written");
    for (int readers = 1; readers <= world.size(); ++readers) {
      comm::Communicator reading = world.split(me < readers ? 0 : 1, me, "readers");
      if (me < readers)
        expect_sample(reading, folder.path() / ckpt::step_folder(Step(writers)), Deal::kEven,
                      writers);
    }
  }
}

TEST(Roundtrip, the_split_over_ranks_leaves_no_trace_in_the_file) {
  const Folder folder;
  comm::Communicator& world = CommWorld::get();
  std::string first;
  for (const Deal deal : {Deal::kFirstRankOnly, Deal::kEven, Deal::kCrumbs, Deal::kWholeTensors}) {
    const fs::path path = save_sample(world, folder.path(), deal, 5);
    expect_sample(world, path, Deal::kCrumbs, 5);
    expect_sample(world, path, Deal::kWholeTensors, 5);
    const std::string bytes = bytes_of_file(path / "state.h5");
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << "deal " << static_cast<int>(deal);
    ckpt::Reader(path).verify();
    world.barrier("compared");
  }
}

TEST(Roundtrip, the_bytes_do_not_depend_on_what_memory_held_before) {
  const Folder folder;
  comm::Communicator& world = CommWorld::get();
  std::vector<std::string> files;
  for (const int fill : {0x00, 0xa5}) {
    mallopt(M_PERTURB, fill);
    const fs::path path = save_sample(world, folder.path(), Deal::kCrumbs, 9);
    mallopt(M_PERTURB, 0);
    files.push_back(bytes_of_file(path / "state.h5") + bytes_of_file(path / "manifest.json"));
    world.barrier("compared");
  }
  EXPECT_TRUE(files[0] == files[1]);
}

TEST(Roundtrip, keeps_shapes_texts_and_step) {
  const Folder folder;
  const fs::path path = save_sample(CommWorld::get(), folder.path(), Deal::kEven, 12);
  const ckpt::Reader reader(path);
  EXPECT_EQ(path.filename(), "step-00000012");
  EXPECT_EQ(reader.step(), Step(12));
  EXPECT_EQ(reader.world_size(), CommWorld::get().size());
  EXPECT_EQ(reader.extra().at("config"), "model: {type: gpt2}\n");
  EXPECT_EQ(reader.extra().at("empty"), "");
  const auto specs = sample_specs();
  for (const TensorSpec& spec : specs) {
    const auto found = reader.find(spec.path);
    ASSERT_TRUE(found.has_value()) << spec.path;
    EXPECT_EQ(reader.tensors()[*found].shape, spec.shape);
    EXPECT_EQ(reader.tensors()[*found].dtype, spec.dtype);
  }
}

TEST(Roundtrip, elements_that_nobody_or_two_give_fail_on_every_rank) {
  const Folder folder;
  comm::Communicator& world = CommWorld::get();
  const auto specs = sample_specs();
  for (const std::int64_t change : {-1, 1}) {
    Share share(specs, Deal::kEven, static_cast<int>(world.rank().value), world.size());
    share.fill(specs, 1);
    ckpt::Snapshot snapshot = snapshot_of(specs, share, "");
    // The last rank gives the end of the first tensor twice, or not at all.
    const bool last = world.rank().value == world.size() - 1;
    const std::vector<std::byte> twice(4);
    if (last && change > 0) snapshot.extents.push_back({0, 257 * 1031 - 1, 1, twice.data()});
    for (auto& extent : snapshot.extents) {
      if (last && change < 0 && extent.tensor == 0) --extent.count;
    }
    try {
      ckpt::save(world, snapshot, {folder.path(), Step(1), 3});
      ADD_FAILURE() << "saved";
    } catch (const Error& error) {
      EXPECT_NE(error.message.find("/model/h.0.weight"), std::string::npos) << error.message;
    }
  }
  EXPECT_TRUE(ckpt::list(folder.path()).empty());
}

TEST(Roundtrip, one_ranks_failure_is_every_ranks_error) {
  const Folder folder;
  comm::Communicator& world = CommWorld::get();
  save_sample(world, folder.path(), Deal::kEven, 1);
  const bool bad = world.rank().value == world.size() - 1;
  ckpt::Saver saver(
      [&](std::string_view call, bool done) { return bad && !done && call == "write" ? EIO : 0; });
  const auto specs = sample_specs();
  Share share(specs, Deal::kEven, static_cast<int>(world.rank().value), world.size());
  share.fill(specs, 2);
  try {
    saver.save(world, snapshot_of(specs, share, ""), {folder.path(), Step(2), 3});
    ADD_FAILURE() << "saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    // With one rank the error is everybody's, and names nobody.
    EXPECT_EQ(error.rank, world.size() == 1 ? -1 : world.size() - 1);
  }
  world.barrier("failed");
  EXPECT_EQ(ckpt::list(folder.path()).size(), 1U);
  expect_sample(world, folder.path() / "step-00000001", Deal::kEven, 1);
}

TEST(LoadNewest, all_ranks_fall_back_when_one_finds_damage) {
  const Folder folder;
  comm::Communicator& world = CommWorld::get();
  for (const std::int64_t step : {1, 2}) save_sample(world, folder.path(), Deal::kEven, step);
  if (world.is_root()) {
    // The last bytes of the largest tensor are the last rank's.
    const fs::path state = folder.path() / "step-00000002" / "state.h5";
    std::fstream file(state, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(state)) - 4096);
    file.put('\x7f');
  }
  world.barrier("damaged");
  const auto specs = sample_specs();
  Share share(specs, Deal::kEven, static_cast<int>(world.rank().value), world.size());
  std::vector<std::string> warnings;
  const auto step = ckpt::load_newest(
      world, folder.path(),
      [&](const ckpt::Reader& reader) {
        share.clear(specs);
        reader.read(share.wanted());
      },
      [&](const std::string& text) { warnings.push_back(text); });
  EXPECT_EQ(step, Step(1));
  share.expect_values(specs, 1);
  ASSERT_EQ(warnings.size(), world.is_root() ? 1U : 0U);
  if (world.is_root()) {
    EXPECT_NE(warnings[0].find("/big is damaged in block 2"), std::string::npos) << warnings[0];
    const std::string who =
        world.size() == 1 ? "every rank" : "rank " + std::to_string(world.size() - 1);
    EXPECT_NE(warnings[0].find("found by " + who), std::string::npos) << warnings[0];
  }
}

TEST(LoadNewest, says_nothing_of_an_empty_folder) {
  const Folder folder;
  const auto step = ckpt::load_newest(
      CommWorld::get(), folder.path() / "none", [](const ckpt::Reader&) {},
      [](const std::string&) {});
  EXPECT_FALSE(step.has_value());
}

}  // namespace
}  // namespace trireme::testing
