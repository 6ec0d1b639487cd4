#include "trireme/base/deadline.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"

#include "session.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::comm {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::text_of;
using ::testing::HasSubstr;

class Collectives : public ::testing::Test {
 protected:
  Session session{nullptr, nullptr, testing::session_options()};
  Communicator& world = session.world();
  int rank = static_cast<int>(world.rank().value);
  int size = world.size();
  int next = (rank + 1) % size;
  int previous = (rank + size - 1) % size;
};

TEST_F(Collectives, barrier_lets_nobody_leave_before_the_last_arrives) {
  std::this_thread::sleep_for(std::chrono::milliseconds(30 * rank));
  const auto entered = Clock::now().time_since_epoch().count();
  world.barrier("test");
  const auto left = Clock::now().time_since_epoch().count();
  const auto all_entered = all_gather_values(world, entered, "entered");
  EXPECT_GE(left, *std::max_element(all_entered.begin(), all_entered.end()));
}

TEST_F(Collectives, ranks_that_are_each_alone_keep_their_order_and_reach_each_other) {
  const auto apart = session.each_alone();
  EXPECT_EQ(apart->world().rank(), world.rank());
  EXPECT_EQ(apart->world().size(), size);
  EXPECT_EQ(apart->world().timeout(), world.timeout());
  EXPECT_EQ(apart->node().size(), 1);
  EXPECT_EQ(apart->node().world_rank(0), world.rank());
  EXPECT_EQ(apart->topology().num_nodes, size);
  EXPECT_EQ(apart->topology().node, rank);
  EXPECT_EQ(all_gather_values(apart->world(), rank, "ranks").back(), size - 1);
  // Nothing of one is seen in the other.
  apart->node().barrier("alone");
  world.barrier("together");
}

TEST_F(Collectives, broadcast_gives_roots_bytes_whatever_the_others_pass) {
  for (const int root : {0, size - 1}) {
    for (const std::size_t length : {0UL, 1UL, 100'003UL}) {
      const ByteVector mine(rank == root ? length : static_cast<std::size_t>(rank) * 7,
                            static_cast<std::byte>(rank + 1));
      const ByteVector got = world.broadcast(mine, "test", Rank(root));
      EXPECT_EQ(got, ByteVector(length, static_cast<std::byte>(root + 1)));
    }
  }
}

TEST_F(Collectives, all_gather_keeps_order_and_lengths) {
  const auto length_of = [](int r) { return r % 2 == 1 ? 0UL : static_cast<std::size_t>(r) * 1000 + 3; };
  const ByteVector mine(length_of(rank), static_cast<std::byte>(rank + 1));
  const auto all = world.all_gather(mine, "test");
  ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)], ByteVector(length_of(r), static_cast<std::byte>(r + 1)));
  }
  for (const ByteVector& bytes : world.all_gather({}, "nothing")) EXPECT_TRUE(bytes.empty());
}

TEST_F(Collectives, exchange_keeps_the_order_of_messages_between_two_ranks) {
  std::vector<Message> out;
  for (int i = 0; i < 5; ++i) {
    // Different lengths, one of them empty: a swap could not go unseen.
    const std::string text(static_cast<std::size_t>(i) * 1000, static_cast<char>('a' + rank));
    out.push_back({Rank(next), bytes_of(i == 0 ? "" : std::to_string(i) + text)});
  }
  const std::vector<Message> in = world.exchange(std::move(out), "test");
  ASSERT_EQ(in.size(), 5U);
  for (int i = 0; i < 5; ++i) {
    const Message& message = in[static_cast<std::size_t>(i)];
    EXPECT_EQ(message.peer, Rank(previous));
    const std::string text(static_cast<std::size_t>(i) * 1000, static_cast<char>('a' + previous));
    EXPECT_EQ(text_of(message.bytes), i == 0 ? "" : std::to_string(i) + text);
  }
}

TEST_F(Collectives, exchange_is_sorted_by_sender_and_needs_nothing_from_anyone) {
  EXPECT_TRUE(world.exchange({}, "nobody").empty());
  // Only odd ranks send, to rank 0, from which they hear nothing.
  std::vector<Message> out;
  if (rank % 2 == 1) out.push_back({Rank(0), bytes_of("from " + std::to_string(rank))});
  const std::vector<Message> in = world.exchange(std::move(out), "sparse");
  ASSERT_EQ(in.size(), rank == 0 ? static_cast<std::size_t>(size / 2) : 0U);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(in[i].peer, Rank(static_cast<std::int64_t>(2 * i + 1)));
    EXPECT_EQ(text_of(in[i].bytes), "from " + std::to_string(2 * i + 1));
  }
}

TEST_F(Collectives, exchange_reaches_everyone_and_oneself) {
  std::vector<Message> out;
  for (int peer = size - 1; peer >= 0; --peer) {
    out.push_back({Rank(peer), bytes_of(std::to_string(rank) + ">" + std::to_string(peer))});
  }
  const std::vector<Message> in = world.exchange(std::move(out), "all");
  ASSERT_EQ(in.size(), static_cast<std::size_t>(size));
  for (int sender = 0; sender < size; ++sender) {
    EXPECT_EQ(text_of(in[static_cast<std::size_t>(sender)].bytes),
              std::to_string(sender) + ">" + std::to_string(rank));
  }
}

TEST_F(Collectives, agree_is_silent_when_all_succeed) {
  int calls = 0;
  EXPECT_NO_THROW(world.agree("test", [&] { ++calls; }));
  EXPECT_EQ(calls, 1);
}

TEST_F(Collectives, agree_throws_one_ranks_error_on_all) {
  const int failing = size - 1;
  const Error error = error_of([&] {
    world.agree("test", [&] {
      if (rank != failing) return;
      Error mine(ErrorKind::kCorrupt, "block 7 is damaged", "use the one before");
      mine.cause = "crc 1 instead of 2";
      mine.step = 12;
      throw mine;
    });
  });
  EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
  EXPECT_EQ(error.message, "block 7 is damaged");
  EXPECT_EQ(error.hint, "use the one before");
  EXPECT_EQ(error.cause, "crc 1 instead of 2");
  EXPECT_EQ(error.step, 12);
  if (size > 1) {  // an error of all ranks is nobody's in particular
    EXPECT_EQ(error.rank, failing);
    EXPECT_NE(error.host, "");
  }
  EXPECT_TRUE(error.everywhere);
  // The ranks are in step after it.
  EXPECT_EQ(all_gather_values(world, rank, "after").size(), static_cast<std::size_t>(size));
}

TEST_F(Collectives, agree_reports_the_lowest_failing_rank) {
  const int lowest = size / 2;
  const Error error = error_of([&] {
    world.agree("test", [&] {
      if (rank >= lowest) throw Error(ErrorKind::kIo, "rank " + std::to_string(rank) + " fails");
    });
  });
  EXPECT_EQ(error.message, "rank " + std::to_string(lowest) + " fails");
  if (size > 1) { EXPECT_EQ(error.rank, lowest); }
}

TEST_F(Collectives, agree_names_no_rank_when_all_fail_alike) {
  const Error error =
      error_of([&] { world.agree("test", [] { throw Error(ErrorKind::kConfig, "no such file"); }); });
  EXPECT_EQ(error.message, "no such file");
  EXPECT_EQ(error.rank, -1);
  EXPECT_EQ(error.host, "");
  EXPECT_TRUE(error.everywhere);
}

TEST_F(Collectives, agree_makes_errors_of_other_exceptions) {
  const Error internal = error_of([&] { world.agree("test", [] { throw std::runtime_error("odd"); }); });
  EXPECT_EQ(internal.kind, ErrorKind::kInternal);
  EXPECT_EQ(internal.message, "odd");
  const Error memory = error_of([&] { world.agree("test", [] { throw std::bad_alloc(); }); });
  EXPECT_EQ(memory.kind, ErrorKind::kOutOfMemory);
}

TEST_F(Collectives, split_orders_by_key_inside_a_color) {
  Communicator part = world.split(rank % 2, -rank, "test");
  EXPECT_EQ(part.size(), rank % 2 == 0 ? (size + 1) / 2 : size / 2);
  std::vector<int> expected;
  for (int r = size - 1; r >= 0; --r) {
    if (r % 2 == rank % 2) expected.push_back(r);
  }
  EXPECT_EQ(all_gather_values(part, rank, "members"), expected);
}

TEST(Session, leaves_an_mpi_that_it_did_not_start) {
  for (int i = 0; i < 3; ++i) {
    Session session(nullptr, nullptr, testing::session_options(1));
    session.world().barrier("test");
  }
  int ended = 0;
  MPI_Finalized(&ended);
  EXPECT_EQ(ended, 0);
}

class Nodes : public ::testing::TestWithParam<int> {};

TEST_P(Nodes, hold_consecutive_ranks) {
  Session session(nullptr, nullptr, testing::session_options(GetParam()));
  const Topology& topology = session.topology();
  const int size = session.world().size();
  const int rank = static_cast<int>(session.world().rank().value);
  const int per_node = GetParam() == 0 ? size : GetParam();
  EXPECT_EQ(topology.num_nodes, (size + per_node - 1) / per_node);
  ASSERT_EQ(topology.first_rank.size(), static_cast<std::size_t>(topology.num_nodes) + 1);
  EXPECT_EQ(topology.node, rank / per_node);
  for (int r = 0; r < size; ++r) EXPECT_EQ(topology.node_of(r), r / per_node);
  for (int node = 0; node < topology.num_nodes; ++node) {
    EXPECT_EQ(topology.first_rank[static_cast<std::size_t>(node)], node * per_node);
    EXPECT_EQ(topology.ranks_on(node), std::min(per_node, size - node * per_node));
  }
  EXPECT_EQ(session.node().size(), topology.ranks_on(topology.node));
  EXPECT_EQ(session.node().local_rank(), rank % per_node);
  for (int local = 0; local < session.node().size(); ++local) {
    EXPECT_EQ(session.node().world_rank(local), Rank(topology.node * per_node + local));
  }
}

INSTANTIATE_TEST_SUITE_P(of_so_many_ranks, Nodes, ::testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace trireme::comm
