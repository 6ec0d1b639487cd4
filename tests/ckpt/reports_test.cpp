// What went wrong in other projects' checkpoints, each as a test named after what their users saw.
// One more is in kill_ranks.py, since it costs its job's life: storage that hangs.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/tools.hpp"

#include "ckpt/manifest.hpp"
#include "world_folder.hpp"
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

comm::Communicator& world() { return CommWorld::get(); }
int me() { return static_cast<int>(world().rank().value); }

// Expects that `save` fails on every rank, with a message that holds `what`.
Error expect_refused(const std::function<void()>& save, const std::string& what) {
  try {
    save();
  } catch (const Error& error) {
    EXPECT_NE((error.message + error.cause).find(what), std::string::npos) << error.report();
    return error;
  }
  ADD_FAILURE() << "saved, without: " << what;
  return Error(ErrorKind::kInternal, "saved");
}

// A tensor of floats of which each rank gives [begin, end).
struct Part {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
Part even(std::int64_t all) {
  const std::int64_t ranks = world().size();
  return {all * me() / ranks, all * (me() + 1) / ranks};
}

std::vector<float> numbers(std::int64_t count, float first) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Each rank reads the whole tensor.
std::vector<float> read_all(const fs::path& checkpoint, const std::string& name) {
  const ckpt::Reader reader(checkpoint);
  const std::size_t tensor = *reader.find(name);
  std::vector<float> values(static_cast<std::size_t>(elements_of(reader.tensors()[tensor])));
  const ckpt::Extent extent{tensor, 0, static_cast<std::int64_t>(values.size()), values.data()};
  reader.read({&extent, 1});
  return values;
}

// pytorch/pytorch#144657: values that were changed after the save returned were in the file.
TEST(Reports, values_changed_after_the_save_returned_are_not_in_the_file) {
  const WorldFolder folder;
  const Part part = even(100003);
  std::vector<float> mine = numbers(part.end - part.begin, static_cast<float>(part.begin));
  ckpt::Snapshot snapshot;
  snapshot.tensors = {{"/model/w", DType::kFloat32, {100003}}};
  snapshot.extents = {{0, part.begin, part.end - part.begin, mine.data()}};
  const fs::path path = ckpt::save(world(), snapshot, {folder.path(), Step(1), 0});
  std::fill(mine.begin(), mine.end(), -1.0f);
  EXPECT_EQ(read_all(path, "/model/w"), numbers(100003, 0));
}

// NVIDIA/nvidia-resiliency-ext#376: the counter of one step beside the moments of another.
TEST(Reports, shards_of_two_steps_are_not_mixed) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has one step";
  const WorldFolder folder;
  const auto specs = sample_specs();
  Share share = share_of(world(), specs, Deal::kEven);
  share.fill(specs, 1);
  const Step step(me() == world().size() - 1 ? 2 : 3);
  expect_refused(
      [&] {
        ckpt::save(world(), snapshot_of(specs, share, "{}"), {folder.path(), step, 0});
      },
      "list the same tensors and step");
  EXPECT_TRUE(ckpt::list(folder.path()).empty());
}

// NVIDIA-NeMo/RL#3312: cached handles made every save after the first one identical to it.
TEST(Reports, every_save_of_one_saver_holds_the_values_of_its_own_moment) {
  const WorldFolder folder;
  const auto specs = sample_specs();
  Share share = share_of(world(), specs, Deal::kEven);
  ckpt::Saver saver;
  std::vector<ckpt::CrcTables> tables;
  for (const std::int64_t step : {1, 2, 3}) {
    share.fill(specs, static_cast<std::uint64_t>(step));
    saver.save(world(), snapshot_of(specs, share, "{}"), {folder.path(), Step(step), 0});
    const fs::path path = folder.path() / ckpt::step_folder(Step(step));
    expect_sample(world(), path, Deal::kCrumbs, step);
    tables.push_back(ckpt::read_manifest(path).files[0].crcs);
  }
  EXPECT_NE(tables[0], tables[1]);
  EXPECT_NE(tables[1], tables[2]);
}

// NVIDIA/Megatron-LM#4378: a plan kept from the first save left out what appeared later.
TEST(Reports, a_tensor_that_appears_later_is_in_the_next_save) {
  const WorldFolder folder;
  ckpt::Saver saver;
  std::vector<TensorSpec> specs{{"/model/w", DType::kFloat32, {50}}};
  for (const std::int64_t step : {1, 2, 3}) {
    // One more tensor and other shapes each time.
    Share share = share_of(world(), specs, Deal::kEven);
    share.fill(specs, static_cast<std::uint64_t>(step));
    ckpt::Snapshot snapshot{specs, share.written(), {}};
    saver.save(world(), snapshot, {folder.path(), Step(step), 0});
    const ckpt::Reader reader(folder.path() / ckpt::step_folder(Step(step)));
    share.clear(specs);
    reader.read(share.wanted());
    share.expect_values(specs, static_cast<std::uint64_t>(step));
    EXPECT_EQ(reader.tensors().size(), specs.size());
    specs[0].shape = {50 + step};
    specs.insert(specs.begin(), {"/late/" + std::to_string(step), DType::kFloat32, {step, 7}});
  }
}

// pytorch/pytorch#120356: one name with other data on each rank; one was kept, the others lost.
TEST(Reports, one_name_with_other_data_on_each_rank_is_refused) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has one set of data";
  const WorldFolder folder;
  const std::vector<float> mine = numbers(10, static_cast<float>(me()));
  ckpt::Snapshot snapshot{
      {{"/model/buffer", DType::kFloat32, {10}}}, {{0, 0, 10, mine.data()}}, {}};
  expect_refused(
      [&] {
        ckpt::save(world(), snapshot, {folder.path(), Step(1), 0});
      },
      "/model/buffer");
}

// pytorch/torchtitan#1136: a vocabulary that the ranks do not divide came back different.
TEST(Reports, a_vocabulary_that_the_ranks_do_not_divide_comes_back_the_same) {
  const WorldFolder folder;
  constexpr std::int64_t kRows = 50257 / 97;
  constexpr std::int64_t kWidth = 13;
  // Split by rows, as tensor parallelism does it: the last rank has fewer.
  const std::int64_t rows = (kRows + world().size() - 1) / world().size();
  const Part part{std::min(kRows, rows * me()) * kWidth,
                  std::min(kRows, rows * (me() + 1)) * kWidth};
  const std::vector<float> mine = numbers(part.end - part.begin, static_cast<float>(part.begin));
  ckpt::Snapshot snapshot{{{"/model/wte", DType::kFloat32, {kRows, kWidth}}},
                          {{0, part.begin, part.end - part.begin, mine.data()}},
                          {}};
  const fs::path path = ckpt::save(world(), snapshot, {folder.path(), Step(1), 0});
  EXPECT_EQ(read_all(path, "/model/wte"), numbers(kRows * kWidth, 0));
}

// The rows and columns of a tile of a matrix, as extents.
std::vector<ckpt::ConstExtent> tile(std::size_t tensor, std::int64_t columns, Part rows, Part cols,
                                    const float* data) {
  std::vector<ckpt::ConstExtent> extents;
  for (std::int64_t row = rows.begin; row < rows.end; ++row)
    extents.push_back({tensor, row * columns + cols.begin, cols.end - cols.begin,
                       data + (row - rows.begin) * (cols.end - cols.begin)});
  return extents;
}

// pytorch/pytorch#161368: wrong global offsets for two-dimensional uneven sharding.
TEST(Reports, two_dimensional_uneven_tiles_land_where_they_belong) {
  const WorldFolder folder;
  for (std::uint64_t trial = 0; trial < 12; ++trial) {
    const auto dice = philox(trial, 161368);
    const auto rows = static_cast<std::int64_t>(1 + dice[0] % 40);
    const auto columns = static_cast<std::int64_t>(1 + dice[1] % 2000);
    // A grid of `down` times the rest; some tiles are empty.
    const int down = 1 + static_cast<int>(dice[2] % static_cast<unsigned>(world().size()));
    const int across = world().size() / down;
    const bool has_tile = me() < down * across;
    const std::int64_t y = me() / across;
    const std::int64_t x = me() % across;
    const std::int64_t high = (rows + down - 1) / down;
    const std::int64_t wide = (columns + across - 1) / across;
    const Part my_rows{std::min(rows, high * y), std::min(rows, high * (y + 1))};
    const Part my_cols{std::min(columns, wide * x), std::min(columns, wide * (x + 1))};
    std::vector<float> mine;
    for (std::int64_t row = my_rows.begin; row < my_rows.end; ++row) {
      for (std::int64_t col = my_cols.begin; col < my_cols.end; ++col)
        mine.push_back(static_cast<float>(row * columns + col));
    }
    ckpt::Snapshot snapshot{{{"/model/w", DType::kFloat32, {rows, columns}}}, {}, {}};
    if (has_tile) snapshot.extents = tile(0, columns, my_rows, my_cols, mine.data());
    const fs::path path =
        ckpt::save(world(), snapshot, {folder.path(), Step(static_cast<std::int64_t>(trial)), 0});
    EXPECT_EQ(read_all(path, "/model/w"), numbers(rows * columns, 0))
        << rows << "x" << columns << " in " << down << "x" << across;
    world().barrier("compared");
  }
}

// pytorch/pytorch#108869: six elements on four ranks could not be loaded.
TEST(Reports, fewer_elements_than_ranks_are_saved_and_loaded) {
  const WorldFolder folder;
  for (std::int64_t count = 0; count < world().size() + 3; ++count) {
    // Rounded up, as chunking does: the last ranks have none.
    const std::int64_t each = (count + world().size() - 1) / world().size();
    const Part part{std::min(count, each * me()), std::min(count, each * (me() + 1))};
    const std::vector<float> mine = numbers(part.end - part.begin, static_cast<float>(part.begin));
    ckpt::Snapshot snapshot{{{"/model/w", DType::kFloat32, {count}}},
                            {{0, part.begin, part.end - part.begin, mine.data()}},
                            {}};
    const fs::path path = ckpt::save(world(), snapshot, {folder.path(), Step(count), 0});
    EXPECT_EQ(read_all(path, "/model/w"), numbers(count, 0));
    std::vector<float> again(mine.size(), -1.0f);
    const ckpt::Extent extent{0, part.begin, part.end - part.begin, again.data()};
    ckpt::Reader(path).read({&extent, 1});
    EXPECT_EQ(again, mine);
  }
}

// pytorch/torchtitan#811: with fewer ranks, the state of the loaders of the others was dropped.
TEST(Reports, loader_state_of_one_rank_is_refused_rather_than_dropped) {
  const WorldFolder folder;
  const auto specs = sample_specs();
  Share share = share_of(world(), specs, Deal::kEven);
  share.fill(specs, 1);
  ckpt::Snapshot snapshot = snapshot_of(specs, share, "{}");
  snapshot.extra["loader"] = "rank " + std::to_string(me());
  if (world().size() > 1) {
    expect_refused(
        [&] {
          ckpt::save(world(), snapshot, {folder.path(), Step(1), 0});
        },
        "give the same texts");
  }
  // Ranks may leave it all to root.
  if (me() != 0) snapshot.extra.clear();
  const fs::path path = ckpt::save(world(), snapshot, {folder.path(), Step(2), 0});
  EXPECT_EQ(ckpt::Reader(path).extra().at("loader"), "rank 0");
}

// HDFGroup/hdf5#118: an error of one rank when opening left the others in a collective.
TEST(Reports, a_failing_open_on_one_rank_is_every_ranks_error) {
  const WorldFolder folder;
  const bool bad = me() == world().size() - 1;
  const auto specs = sample_specs();
  Share share = share_of(world(), specs, Deal::kEven);
  share.fill(specs, 1);
  ckpt::Saver saver([&](std::string_view call, bool done) {
    return bad && !done && call == "open" ? EACCES : 0;
  });
  const Error error = expect_refused(
      [&] {
        saver.save(world(), snapshot_of(specs, share, "{}"), {folder.path(), Step(1), 0});
      },
      "open");
  EXPECT_EQ(error.kind, ErrorKind::kIo);
  world().barrier("all are here");
  EXPECT_TRUE(ckpt::list(folder.path()).empty());
}

// h5py/h5py#1108, Unidata/netcdf-c#1831: a rank without data, or with another number of writes,
// hung the rest.
TEST(Reports, ranks_without_any_data_do_not_hang_the_save) {
  const WorldFolder folder;
  const fs::path path = save_sample(world(), folder.path(), Deal::kFirstRankOnly, 1);
  expect_sample(world(), path, Deal::kEven, 1);
  ckpt::Snapshot nothing;
  const fs::path empty = ckpt::save(world(), nothing, {folder.path(), Step(2), 0});
  ckpt::Reader(empty).verify();
}

// pytorch/pytorch#144752: a file system without fsync ended the save with an exception.
TEST(Reports, a_file_system_without_fsync_is_said_not_fatal) {
  const WorldFolder folder;
  for (const int code : {EINVAL, ENOTSUP}) {
    ckpt::Saver saver([&](std::string_view call, bool done) {
      return !done && call.starts_with("fsync") ? code : 0;
    });
    const auto specs = sample_specs();
    Share share = share_of(world(), specs, Deal::kEven);
    share.fill(specs, 1);
    const auto result =
        saver.save(world(), snapshot_of(specs, share, "{}"), {folder.path(), Step(1), 0});
    ASSERT_EQ(result.notes.size(), 1U);
    EXPECT_NE(result.notes[0].find("no fsync"), std::string::npos);
    expect_sample(world(), result.path, Deal::kEven, 1);
    world().barrier("compared");
  }
}

}  // namespace
}  // namespace trireme::testing
