// A file for each node: what is read does not depend on how the ranks were cut into nodes, and tools
// say of such a checkpoint what they say of one file.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/tools.hpp"

#include "ckpt/manifest.hpp"
#include "ckpt/node_file.hpp"
#include "h5py.hpp"
#include "world_folder.hpp"
#include <gtest/gtest.h>
#include <malloc.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

comm::Communicator& world() { return CommWorld::get(); }
int me() { return static_cast<int>(world().rank().value); }

ckpt::SaveOptions by_node(const fs::path& folder, Step step, int ranks_per_node,
                          ckpt::Driver driver = ckpt::Driver::kDirect) {
  ckpt::SaveOptions options{folder, step, 0, driver};
  options.files = ckpt::Files::kNode;
  options.node = me() / ranks_per_node;
  return options;
}

fs::path save_by_node(const ckpt::SaveOptions& options, Deal deal, std::uint64_t save,
                      const ckpt::FaultHook& hook = {}) {
  const auto specs = sample_specs();
  Share share = share_of(world(), specs, deal);
  share.fill(specs, save);
  return ckpt::Saver(hook).save(world(), snapshot_of(specs, share, R"({"step": 1})"), options).path;
}

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(NodeFiles, read_as_one_file_does_however_ranks_were_cut_into_nodes) {
  const WorldFolder folder;
  const fs::path single = save_sample(world(), folder.path() / "single", Deal::kEven, 7);
  const std::string hash = ckpt::content_hash(single);
  for (const int ranks_per_node : {1, 2}) {
    for (const Deal deal : {Deal::kEven, Deal::kCrumbs, Deal::kFirstRankOnly}) {
      for (const auto driver : {ckpt::Driver::kDirect, ckpt::Driver::kMpiio}) {
        if (driver == ckpt::Driver::kMpiio && deal != Deal::kEven) continue;
        const fs::path path =
            save_by_node(by_node(folder.path(), Step(7), ranks_per_node, driver), deal, 7);
        expect_sample(world(), path, Deal::kCrumbs, 7);
        const ckpt::Reader reader(path);
        // Each rank takes its turn with what reads everything.
        if (me() == static_cast<int>(deal) % world().size()) {
          expect_sample(world(), path, Deal::kWholeTensors, 7);
          reader.verify();
          EXPECT_EQ(ckpt::content_hash(path), hash);
          EXPECT_TRUE(ckpt::compare(path, single).empty());
        }
        EXPECT_EQ(reader.format(), 2);
        EXPECT_EQ(reader.extra().at("config"), "model: {type: gpt2}\n");
        const int nodes = (world().size() + ranks_per_node - 1) / ranks_per_node;
        EXPECT_EQ(ckpt::read_manifest(path).files.size(), static_cast<std::size_t>(nodes));
        for (int node = 0; node < nodes; ++node)
          EXPECT_TRUE(fs::exists(path / ckpt::node_file_name(node)));
        EXPECT_FALSE(fs::exists(path / "state.h5"));
        EXPECT_EQ(ckpt::resolve(path / "state-0000.h5"), path);
        world().barrier("compared");
      }
    }
  }
}

TEST(NodeFiles, bytes_do_not_depend_on_what_memory_held_before) {
  const WorldFolder folder;
  std::set<std::string> files;
  for (const int fill : {0x00, 0xa5}) {
    mallopt(M_PERTURB, fill);
    const fs::path path = save_by_node(by_node(folder.path(), Step(9), 2), Deal::kCrumbs, 9);
    mallopt(M_PERTURB, 0);
    std::string all = bytes_of_file(path / "manifest.json");
    for (int node = 0; node <= (world().size() - 1) / 2; ++node)
      all += bytes_of_file(path / ckpt::node_file_name(node));
    files.insert(all);
    world().barrier("compared");
  }
  EXPECT_EQ(files.size(), 1U);
}

TEST(NodeFiles, one_ranks_failure_on_one_node_is_every_ranks_error) {
  const WorldFolder folder;
  const auto hook = [](std::string_view call, bool done) {
    return me() == world().size() - 1 && !done && call == "write" ? ENOSPC : 0;
  };
  try {
    save_by_node(by_node(folder.path(), Step(1), 1), Deal::kEven, 1, hook);
    ADD_FAILURE() << "saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_EQ(error.rank, world().size() == 1 ? -1 : world().size() - 1) << error.report();
  }
  world().barrier("all are here");
  EXPECT_TRUE(ckpt::list(folder.path()).empty());
}

TEST(NodeFiles, elements_that_no_node_or_two_give_are_refused) {
  if (world().size() == 1) GTEST_SKIP() << "one rank is one node";
  const WorldFolder folder;
  const std::vector<float> values(10);
  for (const std::int64_t shared : {-1, 1}) {
    // Ranks 0 and 1 meet at element 5, and give it twice or not at all.
    ckpt::Snapshot snapshot{{{"/model/w", DType::kFloat32, {10}}}, {}, {}};
    if (me() == 0) snapshot.extents = {{0, 0, 5 + (shared > 0 ? 1 : 0), values.data()}};
    if (me() == 1) {
      const std::int64_t begin = shared > 0 ? 5 : 6;
      snapshot.extents = {{0, begin, 10 - begin, values.data()}};
    }
    try {
      ckpt::save(world(), snapshot, by_node(folder.path(), Step(1), 1));
      ADD_FAILURE() << "saved";
    } catch (const Error& error) {
      EXPECT_NE(error.message.find("/model/w"), std::string::npos) << error.report();
    }
    world().barrier("refused");
  }
  EXPECT_TRUE(ckpt::list(folder.path()).empty());
}

TEST(NodeFiles, h5py_finds_every_element_in_the_files_of_the_nodes) {
  const std::string interpreter = python_with_h5py();
  const WorldFolder folder;
  const fs::path path = save_by_node(by_node(folder.path(), Step(42), 1), Deal::kEven, 6);
  if (interpreter.empty()) GTEST_SKIP() << "no Python with h5py";
  if (world().is_root()) {
    std::vector<fs::path> files;
    for (int node = 0; node < world().size(); ++node)
      files.push_back(path / ckpt::node_file_name(node));
    EXPECT_TRUE(h5py_sees(
        interpreter, files, folder.path(), 6, {{"trireme-format", 2}, {"step", 42}},
        {{"training", R"({"step": 1})"}, {"config", "model: {type: gpt2}\n"}, {"empty", ""}}));
  }
  world().barrier("read");
}

// Flips a byte in the middle of the last dataset of a node's file; returns the dataset's name.
std::string hurt(const fs::path& checkpoint, std::size_t file) {
  const ckpt::StateFile about = ckpt::read_manifest(checkpoint).files.at(file);
  std::size_t last = 0;
  for (std::size_t i = 0; i < about.tensors.size(); ++i) {
    if (about.layout.offsets[i] > about.layout.offsets[last]) last = i;
  }
  std::fstream stream(checkpoint / about.name, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(about.layout.offsets[last] + 3);
  stream.seekg(at);
  const int byte = stream.get();
  stream.seekp(at);
  stream.put(static_cast<char>(byte ^ 0x10));
  return about.tensors[last].path;
}

TEST(NodeFiles, damage_names_the_nodes_file_and_dataset) {
  const WorldFolder folder;
  const fs::path path = save_by_node(by_node(folder.path(), Step(3), 1), Deal::kEven, 3);
  const fs::path copy = save_by_node(by_node(folder.path() / "copy", Step(3), 1), Deal::kEven, 3);
  if (world().is_root()) {
    const auto file = static_cast<std::size_t>(world().size() - 1);
    const std::string dataset = hurt(path, file);
    const auto found = ckpt::examine(path, {copy});
    ASSERT_EQ(found.damages.size(), 1U);
    EXPECT_EQ(fs::path(found.damages[0].file).filename(),
              ckpt::node_file_name(static_cast<int>(file)));
    EXPECT_EQ(found.damages[0].dataset, dataset);
    EXPECT_EQ(found.good_copies, std::vector<fs::path>{copy});
    // What other nodes wrote can be saved when one's file is gone.
    fs::remove(path / ckpt::node_file_name(0));
    EXPECT_FALSE(ckpt::examine(path).good());
    comm::Communicator& comm = world();
    if (comm.size() == 1) {
      const auto saved = ckpt::salvage(comm, path, {copy}, folder.path() / "saved");
      EXPECT_TRUE(saved.lost.empty());
      EXPECT_TRUE(ckpt::compare(saved.checkpoint, copy).empty());
    } else {
      const ckpt::Reader rest(path, [](const ckpt::Damage&) {});
      std::vector<std::byte> bytes(8);
      const std::size_t scalar = *rest.find("/optimizer/step");
      const ckpt::Extent extent{scalar, 0, 1, bytes.data()};
      rest.read({&extent, 1});
      EXPECT_EQ(bytes, values(rest.tensors()[scalar], scalar, 0, 1, 3));
    }
  }
  world().barrier("examined");
}

TEST(NodeFiles, a_missing_or_foreign_file_of_a_node_makes_all_ranks_fall_back) {
  const WorldFolder folder;
  for (const std::int64_t step : {1, 2})
    save_by_node(by_node(folder.path(), Step(step), 1), Deal::kEven,
                 static_cast<std::uint64_t>(step));
  const std::string last = ckpt::node_file_name(world().size() - 1);
  if (world().is_root()) {
    // Of another step: the same places, other values.
    fs::copy_file(folder.path() / "step-00000001" / last, folder.path() / "step-00000002" / last,
                  fs::copy_options::overwrite_existing);
  }
  world().barrier("swapped");
  const auto specs = sample_specs();
  Share share = share_of(world(), specs, Deal::kCrumbs);
  const auto step = ckpt::load_newest(
      world(), folder.path(),
      [&](const ckpt::Reader& reader) {
        share.clear(specs);
        reader.read(share.wanted());
      },
      [](const std::string&) {});
  EXPECT_EQ(step, Step(1));
  share.expect_values(specs, 1);
}

}  // namespace
}  // namespace trireme::testing
