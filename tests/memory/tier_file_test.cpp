#include "trireme/memory/tier_file.hpp"

#include "tier.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>

namespace trireme::memory {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace testing;

// Every test runs with both engines.
class TierFileBy : public ::testing::TestWithParam<TierEngine> {
 protected:
  TierFileOptions options(std::size_t num_records = 4, TierFaultHook hook = {}) const {
    return {dir.path(),   "optimizer state of rank 3",       kPayload,   num_records,
            plain_crc32c, std::chrono::duration<double>(20), GetParam(), std::move(hook)};
  }

  void put(TierFile& file, std::size_t index, std::uint64_t stamp) {
    fill(record().subspan(kRecordHeader), index, stamp);
    file.wait(file.write(index, record(), stamp));
  }
  void get(TierFile& file, std::size_t index, std::uint64_t stamp) {
    std::memset(record().data(), 0xee, kRecord);
    file.wait(file.read(index, record(), stamp));
  }
  std::span<std::byte> record() { return buffer.bytes(); }
  bool holds(std::size_t index, std::uint64_t stamp) {
    return is_filled(record().subspan(kRecordHeader), index, stamp);
  }

  trireme::testing::TempDir dir;
  HostBuffer buffer{Bytes(kRecord), "a record"};
};

TEST_P(TierFileBy, gives_back_what_was_written) {
  TierFile file(options());
  EXPECT_EQ(file.record_bytes(), kRecord);
  EXPECT_EQ(file.num_records(), 4U);
  EXPECT_EQ(file.engine(), GetParam() == TierEngine::kIoUring ? "io_uring" : "threads");
  for (std::size_t i = 0; i < 4; ++i) put(file, i, 7);
  put(file, 2, 8);
  for (const std::size_t i : {3U, 0U, 1U}) {
    get(file, i, 7);
    EXPECT_TRUE(holds(i, 7)) << i;
  }
  get(file, 2, 8);
  EXPECT_TRUE(holds(2, 8));
}

TEST_P(TierFileBy, keeps_many_transfers_apart) {
  constexpr std::size_t kMany = 40;
  constexpr std::size_t kLarge = (std::size_t{2} << 20) + 4096;  // three pieces and odd
  TierFileOptions large = options(kMany);
  large.payload = kLarge;
  TierFile file(large);
  const HostBuffer all(Bytes(static_cast<std::int64_t>(kMany * file.record_bytes())), "all");
  const auto record_at = [&](std::size_t i) {
    return all.bytes().subspan(i * file.record_bytes(), file.record_bytes());
  };
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < kMany; ++i) {
    fill(record_at(i).subspan(kRecordHeader), i, 1);
    tickets.push_back(file.write(i, record_at(i), 1));
  }
  for (std::size_t i = kMany; i-- > 0;) file.wait(tickets[i]);
  std::memset(all.bytes().data(), 0, all.bytes().size());
  tickets.clear();
  for (std::size_t i = 0; i < kMany; ++i) tickets.push_back(file.read(i, record_at(i), 1));
  for (std::size_t i = 0; i < kMany; ++i) {
    file.wait(tickets[i]);
    ASSERT_TRUE(is_filled(record_at(i).subspan(kRecordHeader), i, 1)) << i;
  }
  const TierStats stats = file.take_stats();
  EXPECT_EQ(stats.read.value, static_cast<std::int64_t>(all.bytes().size()));
  EXPECT_EQ(stats.written, stats.read);
  EXPECT_GT(stats.busy, 0);
  EXPECT_GT(stats.stalled, 0);
  EXPECT_EQ(file.take_stats().read.value, 0);
}

TEST_P(TierFileBy, leaves_nothing_in_the_folder) {
  const TierFile file(options());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST_P(TierFileBy, makes_its_folder) {
  TierFileOptions deep = options();
  deep.folder = dir / "a/b";
  TierFile file(deep);
  put(file, 0, 1);
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b"));
}

TEST_P(TierFileBy, names_a_flipped_byte) {
  TierFile file(options());
  put(file, 1, 5);
  const FileDescriptor behind = open_behind(dir.path());
  ASSERT_TRUE(behind);
  const off_t place = kRecord + kRecordHeader + 5000;
  std::byte b{};
  ASSERT_EQ(::pread(behind.get(), &b, 1, place), 1);
  b ^= std::byte{0x10};
  ASSERT_EQ(::pwrite(behind.get(), &b, 1, place), 1);
  const Error error = error_of([&] { get(file, 1, 5); });
  EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("record 1 of the optimizer state of rank 3 (at byte 16384"));
  EXPECT_THAT(error.message, HasSubstr(dir.path().string()));
  EXPECT_THAT(error.message, HasSubstr("damaged: CRC32C"));
  put(file, 1, 6);  // written anew it is whole
  get(file, 1, 6);
  EXPECT_TRUE(holds(1, 6));
}

TEST_P(TierFileBy, names_a_flipped_byte_in_the_header) {
  TierFile file(options());
  const FileDescriptor behind = open_behind(dir.path());
  for (const off_t place : {0, 9, 17, 25, 33, 37}) {
    put(file, 0, 5);
    std::byte b{};
    ASSERT_EQ(::pread(behind.get(), &b, 1, place), 1);
    b ^= std::byte{0x04};
    ASSERT_EQ(::pwrite(behind.get(), &b, 1, place), 1);
    const Error error = error_of([&] { get(file, 0, 5); });
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt) << place;
    EXPECT_THAT(error.message, HasSubstr("damaged")) << place;
  }
}

TEST_P(TierFileBy, names_a_record_of_an_earlier_step) {
  TierFile file(options());
  const FileDescriptor behind = open_behind(dir.path());
  std::vector<std::byte> old(kRecord);
  put(file, 2, 11);
  ASSERT_EQ(::pread(behind.get(), old.data(), kRecord, 2 * kRecord), ssize_t{kRecord});
  put(file, 2, 12);
  // The disk lost the write: the old bytes are there, whole and with a valid checksum.
  ASSERT_EQ(::pwrite(behind.get(), old.data(), kRecord, 2 * kRecord), ssize_t{kRecord});
  const Error error = error_of([&] { get(file, 2, 12); });
  EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("record 2"));
  EXPECT_THAT(error.message, HasSubstr("stale: stamp 11, expected 12"));
  EXPECT_THAT(error.hint, HasSubstr("checkpoint"));
}

TEST_P(TierFileBy, names_a_torn_record) {
  TierFile file(options());
  const FileDescriptor behind = open_behind(dir.path());
  std::vector<std::byte> old(kRecord);
  put(file, 0, 11);
  ASSERT_EQ(::pread(behind.get(), old.data(), kRecord, 0), ssize_t{kRecord});
  put(file, 0, 12);
  // The last page did not arrive.
  ASSERT_EQ(::pwrite(behind.get(), old.data() + kRecord - 4096, 4096, kRecord - 4096), 4096);
  EXPECT_THAT(error_of([&] { get(file, 0, 12); }).message, HasSubstr("damaged: CRC32C"));
}

TEST_P(TierFileBy, names_a_record_in_the_place_of_another) {
  TierFile file(options());
  put(file, 0, 3);
  put(file, 1, 3);
  const FileDescriptor behind = open_behind(dir.path());
  std::vector<std::byte> first(kRecord);
  ASSERT_EQ(::pread(behind.get(), first.data(), kRecord, 0), ssize_t{kRecord});
  ASSERT_EQ(::pwrite(behind.get(), first.data(), kRecord, kRecord), ssize_t{kRecord});
  const Error error = error_of([&] { get(file, 1, 3); });
  EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("record 1"));
  EXPECT_THAT(error.message, HasSubstr("misplaced: it is record 0"));
}

TEST_P(TierFileBy, names_a_record_that_was_never_written) {
  TierFile file(options());
  const Error error = error_of([&] { get(file, 3, 1); });
  EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("record 3"));
  EXPECT_THAT(error.message, HasSubstr("never written"));
}

TEST_P(TierFileBy, names_a_file_that_became_shorter) {
  TierFile file(options());
  put(file, 3, 1);
  const FileDescriptor behind = open_behind(dir.path());
  ASSERT_EQ(::ftruncate(behind.get(), 3 * kRecord + 4096), 0);
  const Error error = error_of([&] { get(file, 3, 1); });
  EXPECT_EQ(error.kind, ErrorKind::kIo);
  EXPECT_THAT(error.message, HasSubstr("record 3"));
  EXPECT_THAT(error.message, HasSubstr("failed at byte 53248"));
}

TEST_P(TierFileBy, resumes_short_and_interrupted_transfers) {
  std::atomic<int> calls{0};
  TierFile file(options(4, [&calls](std::string_view call) {
    if (call != "read" && call != "write") return 0;
    switch (calls++ % 4) {
      case 0:
        return kShortTransfer;
      case 1:
        return EINTR;
      case 2:
        return EAGAIN;
      default:
        return 0;
    }
  }));
  for (std::size_t i = 0; i < 4; ++i) put(file, i, 2);
  for (std::size_t i = 0; i < 4; ++i) {
    get(file, i, 2);
    EXPECT_TRUE(holds(i, 2)) << i;
  }
  EXPECT_GE(calls, 24);
}

TEST_P(TierFileBy, gives_up_on_endless_interruptions) {
  TierFile file(options(4, [](std::string_view call) { return call == "write" ? EINTR : 0; }));
  const Error error = error_of([&] { put(file, 0, 2); });
  EXPECT_EQ(error.kind, ErrorKind::kIo);
  EXPECT_THAT(error.message, HasSubstr("cannot write record 0"));
}

TEST_P(TierFileBy, names_errors_of_the_disk) {
  for (const auto& [call, code] : {std::pair{"read", EIO}, {"write", EIO}, {"write", ENOSPC}}) {
    std::atomic<bool> broken{false};
    TierFile file(options(4, [&broken, call = call, code = code](std::string_view name) {
      return broken && name == call ? code : 0;
    }));
    put(file, 2, 1);
    broken = true;
    const Error error = error_of([&] {
      put(file, 2, 2);
      get(file, 2, 2);
    });
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_THAT(error.message, HasSubstr(std::string("cannot ") + call + " record 2"));
    EXPECT_THAT(error.message, HasSubstr("failed at byte 32768"));
    EXPECT_THAT(error.message, HasSubstr("(errno " + std::to_string(code) + ")"));
    EXPECT_NE(error.hint, "");
    broken = false;
    put(file, 2, 3);  // one failure does not poison the file
    get(file, 2, 3);
    EXPECT_TRUE(holds(2, 3));
  }
}

TEST_P(TierFileBy, goes_through_the_page_cache_where_direct_io_is_refused) {
  std::atomic<int> refusals{0};
  TierFile file(options(4, [&refusals](std::string_view call) {
    return call == "write" && refusals++ == 0 ? EINVAL : 0;
  }));
  put(file, 0, 1);
  get(file, 0, 1);
  EXPECT_TRUE(holds(0, 1));
  ASSERT_EQ(file.notes().size(), 1U);
  EXPECT_THAT(file.notes()[0], HasSubstr("no direct I/O"));
  EXPECT_THAT(file.notes()[0], HasSubstr(dir.path().string()));

  TierFile other(options(4, [](std::string_view call) { return call == "create" ? EINVAL : 0; }));
  EXPECT_EQ(other.notes().size(), 1U);
  put(other, 0, 1);
  get(other, 0, 1);
  EXPECT_TRUE(holds(0, 1));
}

TEST_P(TierFileBy, works_where_space_cannot_be_reserved) {
  TierFile file(
      options(4, [](std::string_view call) { return call == "allocate" ? EOPNOTSUPP : 0; }));
  ASSERT_EQ(file.notes().size(), 1U);
  EXPECT_THAT(file.notes()[0], HasSubstr("cannot reserve space"));
  put(file, 3, 1);
  get(file, 3, 1);
  EXPECT_TRUE(holds(3, 1));
}

TEST_P(TierFileBy, refuses_what_does_not_fit_on_the_disk) {
  TierFileOptions huge = options();
  huge.num_records = std::size_t{1} << 30;  // 16 TiB
  const Error error = error_of([&] { TierFile file(huge); });
  EXPECT_EQ(error.kind, ErrorKind::kIo);
  EXPECT_THAT(error.message, HasSubstr("cannot reserve 16.0 TiB in " + dir.path().string()));
  EXPECT_THAT(error.message, HasSubstr("optimizer state of rank 3"));
  EXPECT_THAT(error.message, HasSubstr("are free"));
  EXPECT_THAT(error.hint, HasSubstr("offload"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST_P(TierFileBy, names_a_disk_that_does_not_answer) {
  const auto start = std::chrono::steady_clock::now();
  {
    TierFileOptions impatient =
        options(4, [silent = std::make_shared<std::atomic<int>>(0)](std::string_view call) {
          return call == "read" && (*silent)++ > 0 ? kNoAnswer : 0;
        });
    impatient.timeout = std::chrono::duration<double>(0.2);
    TierFile file(impatient);
    put(file, 0, 1);
    get(file, 0, 1);
    const Error error = error_of([&] { get(file, 0, 1); });
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_THAT(error.message, HasSubstr("waited 0.2 s for the disk to read record 0"));
  }  // the destructor does not wait for ever either
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 5);
}

TEST_P(TierFileBy, ends_with_transfers_that_nobody_waited_for) {
  TierFile file(options());
  fill(record().subspan(kRecordHeader), 0, 1);
  file.write(0, record(), 1);
}

TEST_P(TierFileBy, refuses_wrong_use) {
  TierFile file(options());
  put(file, 0, 1);
  EXPECT_THROW(file.write(4, record(), 1), Error);
  EXPECT_THROW(file.write(0, record().first(4096), 1), Error);
  EXPECT_THROW(file.wait(Ticket{99}), Error);
  TierFileOptions odd = options();
  odd.payload = 5000;
  EXPECT_THROW(TierFile{odd}, Error);
  TierFileOptions unchecked = options();
  unchecked.checksum = nullptr;
  EXPECT_THROW(TierFile{unchecked}, Error);
}

bool io_uring_works() {
  const trireme::testing::TempDir dir;
  try {
    const TierFile file({dir.path(),
                         "probe",
                         kPayload,
                         1,
                         plain_crc32c,
                         std::chrono::duration<double>(5),
                         TierEngine::kIoUring,
                         {}});
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
    std::fprintf(stderr, "io_uring is not tested: %s\n", error.message.c_str());
    return false;
  }
}

std::vector<TierEngine> engines() {
  if (io_uring_works()) return {TierEngine::kThreads, TierEngine::kIoUring};
  return {TierEngine::kThreads};
}

INSTANTIATE_TEST_SUITE_P(engines, TierFileBy, ::testing::ValuesIn(engines()),
                         [](const auto& engine) {
                           return engine.param == TierEngine::kThreads ? "threads" : "io_uring";
                         });

TEST(TierFile, chooses_an_engine_that_works) {
  const trireme::testing::TempDir dir;
  TierFileOptions options;
  options.folder = dir.path();
  options.payload = kPayload;
  options.num_records = 1;
  options.checksum = plain_crc32c;
  const TierFile file(options);
  EXPECT_EQ(file.engine(), engines().back() == TierEngine::kIoUring ? "io_uring" : "threads");
}

}  // namespace
}  // namespace trireme::memory
