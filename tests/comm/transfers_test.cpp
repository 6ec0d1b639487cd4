#include "trireme/comm/transfers.hpp"

#include "session.hpp"
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <thread>
#include <vector>

namespace trireme::comm {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 4097, 65'537, (3 << 20) + 7};

// Bytes that follow from who sends to whom and what, so that a message in the wrong place shows.
ByteVector content(std::int64_t from, std::int64_t to, int tag, std::size_t size) {
  ByteVector bytes(size);
  const auto seed = static_cast<std::size_t>(from * 31 + to * 7 + tag);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + seed) >> 3);
  return bytes;
}

class TransfersOf : public ::testing::TestWithParam<int> {
 protected:
  Session session{nullptr, nullptr, testing::session_options(GetParam())};
  Communicator& world = session.world();
  std::int64_t rank = world.rank().value;
  int size = world.size();
};

TEST_P(TransfersOf, all_sizes_arrive_between_all_pairs) {
  Transfers transfers(world);
  std::deque<ByteVector> sent;
  std::deque<std::pair<ByteVector, ByteVector>> received;  // what came, what should
  // Receives are posted in another order than sends: only tags match them.
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    for (int tag = 4; tag >= 0; --tag) {
      const std::size_t bytes = kSizes[tag];
      received.emplace_back(ByteVector(bytes, std::byte{0xee}), content(peer, rank, tag, bytes));
      transfers.receive(Rank(peer), tag, received.back().first);
    }
  }
  for (int peer = size - 1; peer >= 0; --peer) {
    if (peer == rank) continue;
    for (int tag = 0; tag < 5; ++tag) {
      sent.push_back(content(rank, peer, tag, kSizes[tag]));
      transfers.send(Rank(peer), tag, sent.back());
    }
  }
  transfers.wait("test");
  for (const auto& [came, expected] : received) EXPECT_TRUE(came == expected) << expected.size() << " bytes";
}

TEST_P(TransfersOf, tags_up_to_a_million_do_not_meet) {
  Transfers transfers(world);
  const Rank next((rank + 1) % size);
  const Rank previous((rank + size - 1) % size);
  std::deque<ByteVector> sent;
  std::deque<ByteVector> received;
  const auto tag_of = [](int i) { return i < 100 ? i : (1 << 20) - 1 - (i - 100) * 10007; };
  for (int i = 0; i < 200; ++i) {
    sent.push_back(content(rank, next.value, i, 12));
    transfers.send(next, tag_of(i), sent.back());
  }
  for (int i = 199; i >= 0; --i) transfers.receive(previous, tag_of(i), received.emplace_front(12));
  transfers.wait("test");
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(received[static_cast<std::size_t>(i)], content(previous.value, rank, i, 12)) << "tag " << tag_of(i);
  }
}

TEST_P(TransfersOf, one_object_serves_several_batches) {
  Transfers transfers(world);
  transfers.wait("nothing at all");
  for (int batch = 0; batch < 3; ++batch) {
    const ByteVector out = content(rank, (rank + 1) % size, batch, 1000);
    ByteVector in(1000);
    transfers.receive(Rank((rank + size - 1) % size), 5, in);
    transfers.send(Rank((rank + 1) % size), 5, out);
    transfers.wait("test");
    EXPECT_EQ(in, content((rank + size - 1) % size, rank, batch, 1000));
  }
}

TEST_P(TransfersOf, idle_is_called_while_waiting) {
  if (size == 1) GTEST_SKIP() << "nobody to wait for";
  world.barrier("start");
  Transfers transfers(world);
  ByteVector bytes(100'000);
  int calls = 0;
  if (rank == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (int peer = 1; peer < size; ++peer) transfers.send(Rank(peer), 0, bytes);
  } else {
    transfers.receive(Rank(0), 0, bytes);
  }
  transfers.wait("test", [&] { ++calls; });
  if (rank != 0) { EXPECT_GT(calls, 0); }
}

INSTANTIATE_TEST_SUITE_P(nodes, TransfersOf, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace trireme::comm
