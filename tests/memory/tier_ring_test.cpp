#include "tier.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace trireme::memory {
namespace {

using ::testing::HasSubstr;
using namespace testing;

class Ring : public ::testing::Test {
 protected:
  TierFileOptions options(std::size_t num_records, TierFaultHook hook = {}) const {
    return {dir.path(),        "moments of rank 0", kPayload,
            num_records,       plain_crc32c,        std::chrono::duration<double>(20),
            TierEngine::kBest, std::move(hook)};
  }
  // Fills all records with stamp 1.
  static void begin(TierFile& file, TierRing& ring) {
    ring.stream(0, file.num_records(), {.write_stamp = 1, .reads = false},
                [](std::size_t index, std::span<std::byte> payload) { fill(payload, index, 1); });
  }
  static std::size_t count_good(TierFile& file, TierRing& ring, std::uint64_t stamp) {
    std::size_t good = 0;
    ring.stream(0, file.num_records(), {.read_stamp = stamp, .writes = false},
                [&](std::size_t index, std::span<std::byte> payload) {
                  if (is_filled(payload, index, stamp)) ++good;
                });
    return good;
  }

  trireme::testing::TempDir dir;
};

TEST_F(Ring, updates_any_number_of_records) {
  for (const std::size_t count : {1U, 2U, 3U, 4U, 5U, 10U}) {
    TierFile file(options(count));
    TierRing ring(file);
    EXPECT_EQ(ring.size().value, static_cast<std::int64_t>(3 * kRecord));
    begin(file, ring);
    for (std::uint64_t stamp = 1; stamp < 4; ++stamp) {
      std::size_t next = 0;
      ring.stream(0, count, {.read_stamp = stamp, .write_stamp = stamp + 1},
                  [&](std::size_t index, std::span<std::byte> payload) {
                    EXPECT_EQ(index, next++);
                    EXPECT_EQ(payload.size(), kPayload);
                    EXPECT_TRUE(is_filled(payload, index, stamp));
                    fill(payload, index, stamp + 1);
                  });
      EXPECT_EQ(next, count);
    }
    EXPECT_EQ(count_good(file, ring, 4), count);
  }
}

TEST_F(Ring, updates_a_part_and_nothing) {
  TierFile file(options(6));
  TierRing ring(file);
  begin(file, ring);
  const auto never = [](std::size_t, std::span<std::byte>) { ADD_FAILURE(); };
  ring.stream(2, 2, {.read_stamp = 1}, never);
  ring.stream(2, 4, {.read_stamp = 1, .write_stamp = 2},
              [](std::size_t index, std::span<std::byte> payload) { fill(payload, index, 2); });
  ring.stream(2, 4, {.read_stamp = 2, .writes = false},
              [](auto index, auto payload) { EXPECT_TRUE(is_filled(payload, index, 2)); });
  ring.stream(4, 6, {.read_stamp = 1, .writes = false},
              [](auto index, auto payload) { EXPECT_TRUE(is_filled(payload, index, 1)); });
}

TEST_F(Ring, moves_every_byte_once) {
  TierFile file(options(7));
  TierRing ring(file);
  begin(file, ring);
  const TierStats filled = file.take_stats();
  EXPECT_EQ(filled.read.value, 0);
  EXPECT_EQ(filled.written.value, static_cast<std::int64_t>(7 * kRecord));
  EXPECT_EQ(count_good(file, ring, 1), 7U);
  const TierStats looked = file.take_stats();
  EXPECT_EQ(looked.read.value, static_cast<std::int64_t>(7 * kRecord));
  EXPECT_EQ(looked.written.value, 0);
}

TEST_F(Ring, reads_ahead_by_one_record) {
  std::atomic<std::size_t> reads{0};
  std::atomic<std::size_t> writes{0};
  TierFile file(options(6, [&](std::string_view call) {
    if (call == "read") ++reads;
    if (call == "write") ++writes;
    return 0;
  }));
  TierRing ring(file);
  begin(file, ring);
  writes = 0;
  ring.stream(0, 6, {.read_stamp = 1, .write_stamp = 2},
              [&](std::size_t index, std::span<std::byte>) {
                EXPECT_EQ(reads, std::min<std::size_t>(index + 2, 6));
                EXPECT_EQ(writes, index);
              });
}

// While a record is updated, the next is being read and the one before written: a slow update
// finds them done, and nobody waits.
TEST_F(Ring, moves_records_while_one_is_updated) {
  TierFile file(options(8));
  TierRing ring(file);
  begin(file, ring);
  file.take_stats();
  ring.stream(0, 8, {.read_stamp = 1, .write_stamp = 2},
              [](std::size_t index, std::span<std::byte> payload) {
                fill(payload, index, 2);
                std::this_thread::sleep_for(std::chrono::milliseconds(30));
              });
  EXPECT_LT(file.take_stats().stalled, 0.12);  // of 0.24 s
  EXPECT_EQ(count_good(file, ring, 2), 8U);
}

TEST_F(Ring, never_hands_out_a_damaged_record) {
  for (std::size_t bad = 0; bad < 5; ++bad) {
    TierFile file(options(5));
    TierRing ring(file);
    begin(file, ring);
    const FileDescriptor behind = open_behind(dir.path());
    std::byte b{};
    const auto place = static_cast<off_t>(bad * kRecord + kRecordHeader + 77);
    ASSERT_EQ(::pread(behind.get(), &b, 1, place), 1);
    b ^= std::byte{1};
    ASSERT_EQ(::pwrite(behind.get(), &b, 1, place), 1);
    std::size_t updated = 0;
    const Error error = error_of([&] {
      ring.stream(0, 5, {.read_stamp = 1, .write_stamp = 2},
                  [&](std::size_t index, std::span<std::byte> payload) {
                    EXPECT_LT(index, bad);
                    fill(payload, index, 2);
                    ++updated;
                  });
    });
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
    EXPECT_THAT(error.message, HasSubstr("record " + std::to_string(bad) + " of the moments"));
    EXPECT_EQ(updated, bad);
    begin(file, ring);  // ring and file go on
    EXPECT_EQ(count_good(file, ring, 1), 5U);
  }
}

TEST_F(Ring, ends_in_order_when_the_update_throws) {
  TierFile file(options(5));
  TierRing ring(file);
  begin(file, ring);
  EXPECT_THROW(ring.stream(0, 5, {.read_stamp = 1, .write_stamp = 2},
                           [](std::size_t index, std::span<std::byte> payload) {
                             if (index == 2) throw std::runtime_error("not finite");
                             fill(payload, index, 2);
                           }),
               std::runtime_error);
  // What came before it was written, what came after is as it was.
  ring.stream(0, 2, {.read_stamp = 2, .writes = false}, [](auto, auto) {});
  ring.stream(2, 5, {.read_stamp = 1, .writes = false}, [](auto, auto) {});
}

TEST_F(Ring, reports_a_failed_write_at_the_latest_at_the_end) {
  for (std::size_t bad = 0; bad < 5; ++bad) {
    std::atomic<int> writes{-1};
    TierFile file(options(5, [&writes](std::string_view call) {
      return call == "write" && writes >= 0 && writes-- == 0 ? ENOSPC : 0;
    }));
    TierRing ring(file);
    begin(file, ring);
    writes = static_cast<int>(bad);
    const Error error = error_of([&] {
      ring.stream(0, 5, {.read_stamp = 1, .write_stamp = 2},
                  [](std::size_t index, std::span<std::byte> payload) { fill(payload, index, 2); });
    });
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_THAT(error.message, HasSubstr("cannot write record " + std::to_string(bad)));
    EXPECT_THAT(error.hint, HasSubstr("free some space"));
  }
}

TEST_F(Ring, leaves_a_disk_that_does_not_answer) {
  TierFileOptions impatient =
      options(5, [](std::string_view call) { return call == "read" ? kNoAnswer : 0; });
  impatient.timeout = std::chrono::duration<double>(0.2);
  const auto start = std::chrono::steady_clock::now();
  {
    TierFile file(impatient);
    TierRing ring(file);
    begin(file, ring);
    EXPECT_EQ(error_of([&] { count_good(file, ring, 1); }).kind, ErrorKind::kTimeout);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 6);
}

}  // namespace
}  // namespace trireme::memory
