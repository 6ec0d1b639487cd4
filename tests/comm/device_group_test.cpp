// One set of tests for every kind of group; a GPU's are skipped, with the reason, where there are not enough.
#include "trireme/comm/device_group.hpp"

#include "trireme/memory/device.hpp"

#include "comm/unique_ids.hpp"
#include "session.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace trireme::comm {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Kind { kEarlyHost, kLateHost, kGpu };

std::unique_ptr<memory::Device> open(Kind kind, int index) {
  if (kind == Kind::kGpu) return memory::open_gpu({index, Bytes(0)});
  return memory::open_host_device({}, kind == Kind::kLateHost ? memory::HostTiming::kLate
                                                              : memory::HostTiming::kEarly);
}

std::byte pattern(std::int64_t from, std::int64_t to, std::size_t i) {
  return static_cast<std::byte>((static_cast<std::size_t>(from * 31 + to * 7) + i * 131) >> 2);
}

ByteVector content(std::int64_t from, std::int64_t to, std::size_t size) {
  ByteVector bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(from, to, i);
  return bytes;
}

class EveryGroup : public ::testing::TestWithParam<Kind> {
 protected:
  void start(double timeout = 40) {
    session = std::make_unique<Session>(nullptr, nullptr, testing::session_options(0, timeout));
    rank = session->world().rank().value;
    ranks = static_cast<std::size_t>(session->world().size());
    device = open(GetParam(), static_cast<int>(rank));
    group = make_group();
    stream = device->stream("work");
  }
  std::unique_ptr<DeviceGroup> make_group() {
    return GetParam() == Kind::kGpu ? make_gpu_group(session->world(), static_cast<int>(rank))
                                    : make_host_group(session->world());
  }
  void SetUp() override {
    try {
      Session probe(nullptr, nullptr, testing::session_options());
      probe.world().agree("a device", [&] { open(GetParam(), static_cast<int>(probe.world().rank().value)); });
    } catch (const Error& error) {
      GTEST_SKIP() << error.message;
    }
    start();
  }

  memory::DeviceBuffer upload(const ByteVector& bytes) {
    auto buffer = device->allocate(Bytes(static_cast<std::int64_t>(bytes.size())), "test", stream);
    device->copy(buffer.bytes(), bytes, *stream);
    stream->wait("a copy to the device", Deadline::after(std::chrono::seconds(20)));
    return buffer;
  }
  ByteVector download(const memory::DeviceBuffer& buffer) {
    ByteVector bytes(buffer.bytes().size());
    device->copy(bytes, buffer.bytes(), *stream);
    group->wait(*stream, "a copy to the host");
    return bytes;
  }

  std::unique_ptr<Session> session;
  std::int64_t rank = 0;
  std::size_t ranks = 1;
  std::unique_ptr<memory::Device> device;
  std::unique_ptr<DeviceGroup> group;
  std::shared_ptr<DeviceStream> stream;
};

TEST_P(EveryGroup, gathers_from_all_ranks) {
  EXPECT_EQ(group->size(), static_cast<int>(ranks));
  EXPECT_EQ(group->rank(), Rank(rank));
  EXPECT_THAT(group->describe(), HasSubstr(GetParam() == Kind::kGpu ? "NCCL" : "host"));
  for (const std::size_t size : {1U, 1000U, (3U << 20) + 5}) {
    ByteVector expected;
    for (std::size_t r = 0; r < ranks; ++r) {
      const ByteVector theirs = content(static_cast<std::int64_t>(r), 0, size);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    const auto mine = upload(content(rank, 0, size));
    const auto all = upload(ByteVector(size * ranks));
    group->all_gather(mine.bytes(), all.bytes(), *stream);
    EXPECT_TRUE(download(all) == expected) << size << " bytes";

    // From its own place in the destination.
    const auto own_place = all.bytes().subspan(static_cast<std::size_t>(rank) * size, size);
    device->zero(all.bytes(), *stream);
    device->copy(own_place, mine.bytes(), *stream);
    group->all_gather(own_place, all.bytes(), *stream);
    EXPECT_TRUE(download(all) == expected) << size << " bytes in place";
  }
}

// Rank a sends (a + b) * 1000 bytes to rank b: all sizes differ, and one is 0.
TEST_P(EveryGroup, exchanges_different_sizes_with_all_ranks) {
  const auto size_of = [](std::size_t a, std::size_t b) { return (a + b) * 1000; };
  std::vector<memory::DeviceBuffer> out;
  std::vector<memory::DeviceBuffer> in;
  std::vector<std::span<const std::byte>> sends;
  std::vector<std::span<std::byte>> receives;
  const auto me = static_cast<std::size_t>(rank);
  for (std::size_t r = 0; r < ranks; ++r) {
    out.push_back(upload(content(rank, static_cast<std::int64_t>(r), size_of(me, r))));
    in.push_back(upload(ByteVector(size_of(r, me))));
    sends.push_back(out.back().bytes());
    receives.push_back(in.back().bytes());
  }
  group->exchange(sends, receives, *stream);
  for (std::size_t r = 0; r < ranks; ++r)
    EXPECT_TRUE(download(in[r]) == content(static_cast<std::int64_t>(r), rank, size_of(r, me))) << "from " << r;
}

TEST_P(EveryGroup, broadcasts_from_any_root) {
  for (std::int64_t root = 0; root < static_cast<std::int64_t>(ranks); ++root) {
    const auto buffer = upload(content(rank, 0, 5000));
    group->broadcast(buffer.bytes(), Rank(root), *stream);
    EXPECT_TRUE(download(buffer) == content(root, 0, 5000)) << "root " << root;
  }
}

// What is gathered is made on the stream first, and used on another one after an event.
TEST_P(EveryGroup, keeps_the_order_of_streams) {
  const auto compute = device->stream("compute");
  const auto mine = upload(ByteVector(4000));
  const auto all = upload(ByteVector(4000 * ranks));
  const auto copy = upload(ByteVector(4000 * ranks));
  const ByteVector made = content(rank, 9, 4000);
  stream->run([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  device->copy(mine.bytes(), made, *stream);
  group->all_gather(mine.bytes(), all.bytes(), *stream);
  compute->after(stream->record());
  device->copy(copy.bytes(), all.bytes(), *compute);
  group->wait(*compute, "what comes after a gather");
  const ByteVector result = download(copy);
  for (std::size_t r = 0; r < ranks; ++r) {
    const ByteVector theirs(result.begin() + static_cast<std::ptrdiff_t>(r * 4000),
                            result.begin() + static_cast<std::ptrdiff_t>((r + 1) * 4000));
    EXPECT_TRUE(theirs == content(static_cast<std::int64_t>(r), 9, 4000));
  }
}

// Two groups on two streams, as the engine has them. Ranks wait for them in different orders.
TEST_P(EveryGroup, lets_two_groups_overlap) {
  const auto reduce_group = make_group();
  const auto reduce = device->stream("reduce");
  std::vector<memory::DeviceBuffer> buffers;
  for (int i = 0; i < 10; ++i) {
    const auto mine = upload(content(rank, i, 3000));
    const auto gathered = device->allocate(Bytes(static_cast<std::int64_t>(3000 * ranks)), "a", stream);
    const auto reduced = device->allocate(Bytes(static_cast<std::int64_t>(3000 * ranks)), "b", reduce);
    group->all_gather(mine.bytes(), gathered.bytes(), *stream);
    reduce_group->all_gather(mine.bytes(), reduced.bytes(), *reduce);
    const auto wait_first = [&] { group->wait(*stream, "gather", [&] { reduce_group->progress(); }); };
    const auto wait_second = [&] { reduce_group->wait(*reduce, "reduce", [&] { group->progress(); }); };
    if (rank % 2 == 0) {
      wait_first();
      wait_second();
    } else {
      wait_second();
      wait_first();
    }
    const ByteVector both = download(gathered);
    EXPECT_TRUE(both == download(reduced));
    EXPECT_EQ(both[3000 * (ranks - 1) + 17], pattern(static_cast<std::int64_t>(ranks) - 1, i, 17));
  }
}

TEST_P(EveryGroup, many_operations_may_be_queued) {
  std::vector<memory::DeviceBuffer> all;
  const auto mine = upload(content(rank, 3, 100));
  for (int i = 0; i < 200; ++i) {
    all.push_back(device->allocate(Bytes(static_cast<std::int64_t>(100 * ranks)), "all", stream));
    group->all_gather(mine.bytes(), all.back().bytes(), *stream);
  }
  group->wait(*stream, "200 gathers");
  EXPECT_TRUE(download(all.front()) == download(all.back()));
}

TEST_P(EveryGroup, names_the_rank_that_does_not_come) {
  if (ranks == 1) GTEST_SKIP() << "nobody to wait for";
  group.reset();
  stream.reset();
  start(0.5);
  const auto last = static_cast<std::int64_t>(ranks) - 1;
  const auto mine = upload(ByteVector(8));
  const auto all = upload(ByteVector(8 * ranks));
  session->node().set_place(rank == last ? "reading data" : "forward", 7);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank != last) {
    group->all_gather(mine.bytes(), all.bytes(), *stream);
    const auto start = Clock::now();
    const Error error = error_of([&] { group->wait(*stream, "gather of h.3"); });
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_THAT(error.message, HasSubstr("waited 0.5 s in 'gather of h.3' for rank " + std::to_string(last)));
    EXPECT_THAT(error.message, HasSubstr("in 'reading data' at step 7"));
    EXPECT_THAT(error.message, Not(HasSubstr("in 'forward'")));
    EXPECT_LT(seconds_since(start), 20);
    // It is over: nothing that is queued hangs, and nothing works any more.
    EXPECT_THROW(group->all_gather(mine.bytes(), all.bytes(), *stream), Error);
    EXPECT_THROW(group->progress(), Error);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_P(EveryGroup, refuses_what_does_not_fit) {
  const auto mine = upload(ByteVector(8));
  const auto all = upload(ByteVector(8 * ranks + 1));
  EXPECT_THROW(group->all_gather(mine.bytes(), all.bytes(), *stream), Error);
  EXPECT_THROW(group->exchange({}, {}, *stream), Error);
  EXPECT_THROW(group->broadcast(all.bytes(), Rank(static_cast<std::int64_t>(ranks)), *stream), Error);
  EXPECT_THROW(group->broadcast(all.bytes(), Rank(-1), *stream), Error);
}

TEST_P(EveryGroup, ends_what_is_under_way_when_aborted) {
  const auto mine = upload(ByteVector(8));
  const auto all = upload(ByteVector(8 * ranks));
  if (rank == 0) group->all_gather(mine.bytes(), all.bytes(), *stream);
  group->give_up();
  if (rank == 0 && GetParam() != Kind::kGpu) {
    const auto wait = [&] { stream->wait("a gather", Deadline::after(std::chrono::seconds(20))); };
    EXPECT_EQ(error_of(wait).kind, ErrorKind::kDevice);
  }
  EXPECT_THROW(group->all_gather(mine.bytes(), all.bytes(), *stream), Error);
  MPI_Barrier(MPI_COMM_WORLD);
}

INSTANTIATE_TEST_SUITE_P(of, EveryGroup, ::testing::Values(Kind::kEarlyHost, Kind::kLateHost, Kind::kGpu),
                         [](const auto& kind) {
                           return std::string(kind.param == Kind::kGpu         ? "gpus"
                                              : kind.param == Kind::kEarlyHost ? "early_hosts"
                                                                               : "late_hosts");
                         });

// ---- how a group begins ----

TEST(GroupIds, are_the_same_on_all_ranks_and_spread) {
  Session session(nullptr, nullptr, testing::session_options());
  Communicator& world = session.world();
  for (const int ranks_per_id : {1, 2, 3, 128}) {
    int made = 0;
    const auto ids = share_ids(world, ranks_per_id, [&] {
      ++made;
      return testing::bytes_of("id of rank " + std::to_string(world.rank().value));
    });
    const auto num_ids = static_cast<std::size_t>((world.size() + ranks_per_id - 1) / ranks_per_id);
    ASSERT_EQ(ids.size(), num_ids);
    EXPECT_EQ(testing::text_of(ids[0]), "id of rank 0");
    ByteVector joined;
    for (const ByteVector& id : ids) joined.insert(joined.end(), id.begin(), id.end());
    for (const ByteVector& theirs : world.all_gather(joined, "test")) EXPECT_EQ(theirs, joined);
    std::size_t made_by_all = 0;
    for (const int theirs : all_gather_values(world, made, "test")) {
      EXPECT_LE(theirs, 1);
      made_by_all += static_cast<std::size_t>(theirs);
    }
    EXPECT_EQ(made_by_all, num_ids);
    EXPECT_NO_THROW(require_same_ids(world, ids));
  }
}

TEST(GroupIds, that_cannot_be_made_are_an_error_on_every_rank) {
  Session session(nullptr, nullptr, testing::session_options());
  const Error error = error_of([&] {
    share_ids(session.world(), 128, []() -> ByteVector { throw Error(ErrorKind::kDevice, "no socket"); });
  });
  EXPECT_EQ(error.message, "no socket");
  EXPECT_EQ(error.rank, session.world().size() == 1 ? -1 : 0);
}

TEST(GroupIds, that_differ_are_refused_by_all_with_the_ranks_named) {
  Session session(nullptr, nullptr, testing::session_options());
  Communicator& world = session.world();
  if (world.size() == 1) GTEST_SKIP() << "nobody to differ from";
  const bool odd = world.rank().value == world.size() - 1;
  const Error ids = error_of([&] { require_same_ids(world, {testing::bytes_of(odd ? "mine" : "ours")}); });
  EXPECT_EQ(ids.kind, ErrorKind::kEnvironment);
  EXPECT_TRUE(ids.everywhere);
  EXPECT_THAT(ids.message, HasSubstr("ranks differ in the ids of a group: rank 0 has 1 with digest "));
  EXPECT_THAT(ids.message, HasSubstr("rank " + std::to_string(world.size() - 1) + " has 1 with digest "));

  const Error versions = error_of([&] { require_alike(world, "their NCCL", odd ? "NCCL 2.18.3" : "NCCL 2.28.9"); });
  EXPECT_EQ(versions.message, "ranks differ in their NCCL: rank 0 has NCCL 2.28.9, rank " +
                                  std::to_string(world.size() - 1) + " has NCCL 2.18.3");
}

TEST(Group, whose_last_rank_does_not_come_names_it) {
  Session session(nullptr, nullptr, testing::session_options(0, 0.5));
  Communicator& world = session.world();
  if (world.size() == 1) GTEST_SKIP() << "nobody to wait for";
  const auto last = world.size() - 1;
  const bool comes = world.rank().value != last;
  session.node().set_place("reading data", 7);
  MPI_Barrier(MPI_COMM_WORLD);
  if (comes) {
    const Error error = error_of([&] { make_host_group(world); });
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_THAT(error.message, HasSubstr("rank " + std::to_string(last) + " (pid "));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// With NCCL or without: the error is the environment's, on every rank alike.
TEST(GpuGroup, without_gpus_is_an_error_of_the_environment_everywhere) {
  Session session(nullptr, nullptr, testing::session_options());
  std::unique_ptr<DeviceGroup> group;
  try {
    group = make_gpu_group(session.world(), static_cast<int>(session.world().rank().value));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
    EXPECT_EQ(exit_code(error.kind), 69);
    EXPECT_TRUE(error.everywhere);
    EXPECT_FALSE(error.hint.empty());
    return;
  }
  GTEST_SKIP() << "there are GPUs: " << group->describe();
}

}  // namespace
}  // namespace trireme::comm
