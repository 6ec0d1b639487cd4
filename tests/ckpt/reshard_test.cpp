// Every number of ranks reads what every other wrote, to the bit: 1, 2, 3, 4, 5 and 8, with tensors
// of prime sizes, smaller than the number of ranks, and of nothing at all.
#include "world_folder.hpp"
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace trireme::testing {
namespace {

constexpr std::array<int, 6> kCounts{1, 2, 3, 4, 5, 8};

TEST(Reshard, any_of_six_rank_counts_reads_what_any_of_them_wrote) {
  const WorldFolder folder;
  comm::Communicator& world = CommWorld::get();
  ASSERT_EQ(world.size(), 8);
  const int me = static_cast<int>(world.rank().value);
  constexpr std::array<std::pair<Deal, Deal>, 2> kDeals{
      {{Deal::kEven, Deal::kWholeTensors}, {Deal::kCrumbs, Deal::kEven}}};
  std::int64_t step = 0;
  for (const auto& [written, read] : kDeals) {
    for (const int writers : kCounts) {
      ++step;
      comm::Communicator writing = world.split(me < writers ? 0 : 1, me, "writers");
      if (me < writers) save_sample(writing, folder.path(), written, step);
      world.barrier("written");
      const std::filesystem::path path = folder.path() / ckpt::step_folder(Step(step));
      EXPECT_EQ(ckpt::Reader(path).world_size(), writers);
      for (const int readers : kCounts) {
        comm::Communicator reading = world.split(me < readers ? 0 : 1, me, "readers");
        if (me < readers) expect_sample(reading, path, read, step);
      }
      world.barrier("read");
    }
  }
}

// The files themselves do not tell who wrote them, but for the number in the manifest.
TEST(Reshard, the_state_is_the_same_file_for_every_rank_count) {
  const WorldFolder folder;
  comm::Communicator& world = CommWorld::get();
  const int me = static_cast<int>(world.rank().value);
  std::string first;
  for (const int writers : kCounts) {
    comm::Communicator writing = world.split(me < writers ? 0 : 1, me, "writers");
    const std::filesystem::path run = folder.path() / std::to_string(writers);
    if (me < writers) save_sample(writing, run, Deal::kCrumbs, 3);
    world.barrier("written");
    if (!world.is_root()) continue;
    std::ifstream file(run / "step-00000003" / "state.h5", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << writers << " ranks";
  }
}

}  // namespace
}  // namespace trireme::testing
