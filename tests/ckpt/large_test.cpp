// A dataset of more than 4 GiB of which a rank gives more than 2 GiB, past every 32-bit number on
// the way. TRIREME_LARGE_CHECKPOINT=1 takes that size (9 GB of disk, no memory to speak of); without
// it a small one crosses the same borders between calls, requests and blocks.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/tools.hpp"

#include "world_folder.hpp"
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

std::uint32_t word_at(std::uint64_t element) {
  return static_cast<std::uint32_t>((element * 0x9e3779b97f4a7c15U) >> 32);
}

// Elements of the tensor that nobody holds in memory, from byte `at` on.
void make(std::uint64_t at, std::span<std::byte> out) {
  for (std::size_t i = 0; i < out.size(); i += 4) {
    const std::uint32_t word = word_at((at + i) / 4);
    std::memcpy(out.data() + i, &word, 4);
  }
}

bool as_made(std::uint64_t at, std::span<const std::byte> bytes) {
  std::uint32_t differences = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i, 4);
    differences |= word ^ word_at((at + i) / 4);
  }
  return differences == 0;
}

class Large : public ::testing::TestWithParam<ckpt::Driver> {};

TEST_P(Large, more_than_4_gib_of_a_tensor_and_2_gib_of_a_rank_come_back) {
  const bool full = std::getenv("TRIREME_LARGE_CHECKPOINT") != nullptr;
  const WorldFolder folder;
  comm::Communicator& world = CommWorld::get();
  if (full) world.set_timeout(std::chrono::minutes(9));
  // Prime, and with no rank's share on a border of anything.
  const std::int64_t all = full ? 1'140'000'023 : 9'000'011;
  const std::int64_t begin = all * world.rank().value / world.size();
  const std::int64_t end = all * (world.rank().value + 1) / world.size();
  const auto origin = static_cast<std::uint64_t>(begin) * 4;
  ckpt::Snapshot snapshot{{{"/model/w", DType::kFloat32, {all}}}, {}, {}};
  snapshot.extents.push_back(
      {0, begin, end - begin, nullptr,
       [&](std::uint64_t at, std::span<std::byte> out) { make(origin + at, out); }});
  const ckpt::MpiioOptions mpiio{ckpt::Transfer::kIndependent, Bytes(full ? 1 << 30 : 1 << 20)};
  const fs::path path = ckpt::save(world, snapshot, {folder.path(), Step(1), 0, GetParam(), mpiio});
  bool equal = true;
  std::uint64_t read = 0;
  const ckpt::Extent extent{0, begin, end - begin, nullptr,
                            [&](std::uint64_t at, std::span<const std::byte> bytes) {
                              equal = equal && as_made(origin + at, bytes);
                              read += bytes.size();
                            }};
  ckpt::Reader(path).read({&extent, 1});
  EXPECT_TRUE(equal);
  EXPECT_EQ(read, static_cast<std::uint64_t>(end - begin) * 4);
}

INSTANTIATE_TEST_SUITE_P(, Large, ::testing::Values(ckpt::Driver::kDirect, ckpt::Driver::kMpiio),
                         [](const auto& driver) {
                           return driver.param == ckpt::Driver::kDirect ? "direct" : "mpiio";
                         });

}  // namespace
}  // namespace trireme::testing
