#include "trireme/memory/host_buffer.hpp"

#include "trireme/base/error.hpp"
#include "trireme/memory/process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace trireme::memory {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;

TEST(HostBuffer, is_zeroed_and_begins_on_a_page) {
  const HostBuffer buffer(Bytes(3 * kMiB + 5), "weights");
  ASSERT_EQ(buffer.bytes().size(), static_cast<std::size_t>(3 * kMiB + 5));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.bytes().data()) % 4096, 0U);
  EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(buffer.label(), "weights");
}

TEST(HostBuffer, may_hold_nothing) {
  EXPECT_TRUE(HostBuffer().bytes().empty());
  EXPECT_TRUE(HostBuffer(Bytes(0), "nothing").bytes().empty());
}

TEST(HostBuffer, keeps_its_bytes_when_moved) {
  HostBuffer first(Bytes(4096), "first");
  first.as<float>()[7] = 3.5F;
  const std::byte* const place = first.bytes().data();
  HostBuffer second(std::move(first));
  EXPECT_EQ(second.bytes().data(), place);
  EXPECT_EQ(second.as<float>()[7], 3.5F);
  EXPECT_EQ(second.label(), "first");

  HostBuffer third;
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), place);
  EXPECT_EQ(third.label(), "first");
  third = HostBuffer(Bytes(8192), "other");
  EXPECT_EQ(third.bytes().size(), 8192U);
}

TEST(HostBuffer, is_seen_as_values_of_a_type) {
  const HostBuffer buffer(Bytes(64), "values");
  EXPECT_EQ(buffer.as<float>().size(), 16U);
  const auto part = buffer.as<double>(16, 2);
  part[0] = 1;
  EXPECT_EQ(part.size(), 2U);
  EXPECT_EQ(buffer.as<double>()[2], 1.0);
}

TEST(HostBuffer, names_what_it_could_not_reserve) {
  try {
    const HostBuffer buffer(Bytes(std::int64_t{1} << 60), "optimizer moments");
    ADD_FAILURE() << "an exbibyte was reserved";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kOutOfMemory);
    EXPECT_THAT(error.message, HasSubstr("optimizer moments"));
    EXPECT_THAT(error.message, HasSubstr("1024.0 PiB"));
    EXPECT_NE(error.hint, "");
    EXPECT_NE(error.cause, "");
  }
}

TEST(HostBuffer, is_resident_when_touched_and_gone_when_destroyed) {
  const auto resident = [] { return usage().resident.value; };
  const std::int64_t before = resident();
  if (before == 0) GTEST_SKIP() << "no /proc/self/smaps_rollup here";
  constexpr std::int64_t kSize = 64 * kMiB;
  constexpr std::int64_t kNoise = 8 * kMiB;
  {
    const HostBuffer untouched(Bytes(kSize), "untouched", /*touch=*/false);
    EXPECT_LT(resident() - before, kNoise);
    const HostBuffer touched(Bytes(kSize), "touched");
    EXPECT_GT(resident() - before, kSize - kNoise);
    EXPECT_LT(resident() - before, kSize + kNoise);
  }
  EXPECT_LT(resident() - before, kNoise);
  EXPECT_GE(peak_resident().value, before + kSize - kNoise);
  EXPECT_GE(usage().peak.value, before + kSize - kNoise);
}

TEST(Usage, counts_pages_that_nobody_shares_in_full) {
  const Usage now = usage();
  if (now.resident.value == 0) GTEST_SKIP() << "no /proc/self/smaps_rollup here";
  EXPECT_GT(now.proportional.value, 0);
  EXPECT_LE(now.proportional, now.resident);
  EXPECT_LE(now.resident.value, now.peak.value + kMiB);
}

}  // namespace
}  // namespace trireme::memory
