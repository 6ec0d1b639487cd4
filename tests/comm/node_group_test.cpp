#include "trireme/comm/node_group.hpp"

#include "trireme/base/deadline.hpp"

#include "session.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <thread>

namespace trireme::comm {
namespace {

using ::testing::HasSubstr;

// With the real node, and with nodes of one and two ranks (uneven on three).
class Node : public ::testing::TestWithParam<int> {
 protected:
  Session session{nullptr, nullptr, testing::session_options(GetParam())};
  NodeGroup& node = session.node();
  int local = node.local_rank();

  // MPI may round up to pages.
  static void expect_size(std::span<const std::byte> segment, std::size_t asked) {
    EXPECT_GE(segment.size(), asked);
    EXPECT_LT(segment.size(), asked + 4096);
  }
};

TEST_P(Node, barrier_lets_nobody_leave_before_the_last_arrives) {
  const SharedSegments times = node.allocate(sizeof(std::int64_t));
  const auto time_of = [&](int other) -> std::int64_t& {
    return *reinterpret_cast<std::int64_t*>(times.of(other).data());
  };
  for (int round = 0; round < 5; ++round) {
    if (round % node.size() == local) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    time_of(local) = Clock::now().time_since_epoch().count();
    node.barrier("enter");
    const std::int64_t left = Clock::now().time_since_epoch().count();
    for (int other = 0; other < node.size(); ++other) EXPECT_GE(left, time_of(other));
    node.barrier("read");
  }
}

TEST_P(Node, barrier_calls_idle_while_it_waits) {
  node.barrier("start");
  int calls = 0;
  if (local == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  node.barrier("test", [&] { ++calls; });
  if (local != 0) { EXPECT_GT(calls, 0); }
}

TEST_P(Node, segments_are_zeroed_aligned_and_seen_by_all) {
  const auto length_of = [](int other) { return static_cast<std::size_t>(other) * 100'000 + 5; };
  const SharedSegments segments = node.allocate(length_of(local));
  for (int other = 0; other < node.size(); ++other) {
    const auto segment = segments.of(other);
    expect_size(segment, length_of(other));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment.data()) % 4096, 0U);
    EXPECT_TRUE(std::all_of(segment.begin(), segment.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  node.barrier("looked");
  std::fill(segments.of(local).begin(), segments.of(local).end(), static_cast<std::byte>(local + 1));
  node.barrier("written");
  for (int other = 0; other < node.size(); ++other) {
    const auto segment = segments.of(other);
    EXPECT_TRUE(std::all_of(segment.begin(), segment.end(),
                            [&](std::byte b) { return b == static_cast<std::byte>(other + 1); }));
  }
  // Also in the other direction: what a rank writes into another's segment arrives there, first and last byte.
  node.barrier("read");
  const auto next = segments.of((local + 1) % node.size());
  next.front() = next.back() = static_cast<std::byte>(100 + local);
  node.barrier("written again");
  const auto from = static_cast<std::byte>(100 + (local + node.size() - 1) % node.size());
  EXPECT_EQ(segments.of(local).front(), from);
  EXPECT_EQ(segments.of(local).back(), from);
  node.barrier("done");
}

TEST_P(Node, segments_may_be_empty_on_some_or_all_ranks) {
  const SharedSegments first_only = node.allocate(local == 0 ? 64 : 0);
  expect_size(first_only.of(0), 64);
  for (int other = 1; other < node.size(); ++other) EXPECT_TRUE(first_only.of(other).empty());
  if (local == 0) first_only.of(0)[63] = std::byte{9};
  node.barrier("written");
  EXPECT_EQ(first_only.of(0)[63], std::byte{9});

  const SharedSegments last_only = node.allocate(local == node.size() - 1 ? 64 : 0);
  expect_size(last_only.of(node.size() - 1), 64);
  const SharedSegments nothing = node.allocate(0);
  for (int other = 0; other < node.size(); ++other) EXPECT_TRUE(nothing.of(other).empty());
}

TEST_P(Node, describes_where_a_rank_is) {
  node.set_place("backward", 12 + local);
  node.barrier("placed");
  for (int other = 0; other < node.size(); ++other) {
    const std::string text = node.describe(other);
    EXPECT_THAT(text, HasSubstr("rank " + std::to_string(node.world_rank(other).value) + " (pid "));
    EXPECT_THAT(text, HasSubstr("in 'backward' at step " + std::to_string(12 + other)));
  }
  EXPECT_THAT(node.describe(local), HasSubstr("pid " + std::to_string(getpid()) + ")"));
  node.barrier("described");
  node.set_place("a place whose name is longer than the room that there is for it", 1);
  EXPECT_THAT(node.describe(local), HasSubstr("a place whose name is longer than the r'"));
  node.set_place("x", 2);
  EXPECT_THAT(node.describe(local), HasSubstr("in 'x' at step 2"));
}

TEST_P(Node, check_alive_is_content_while_all_live) {
  EXPECT_NO_THROW(node.check_alive("test"));
  node.barrier("done");
}

INSTANTIATE_TEST_SUITE_P(of_so_many_ranks, Node, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace trireme::comm
