// Ranks that are late and processes that are gone: whoever waits learns who it is, in time.
#include "trireme/base/deadline.hpp"
#include "trireme/comm/transfers.hpp"

#include "comm/communicator_impl.hpp"
#include "comm/node_group_impl.hpp"
#include "session.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kTimeout = 0.5;
// On a machine with much else to do, a wait looks at clocks and processes seldom.
constexpr double kSoon = 20;

// The last rank does not come before the others have given up waiting for it, and named it.
template <class Wait>
void expect_that_the_last_is_named(Session& session, const std::string& what, const Wait& wait) {
  const int size = session.world().size();
  const int rank = static_cast<int>(session.world().rank().value);
  if (size == 1) GTEST_SKIP() << "nobody to wait for";
  session.node().set_place(rank == size - 1 ? "reading data" : "forward", 7);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank != size - 1) {
    const auto start = Clock::now();
    const Error error = error_of(wait);
    EXPECT_GE(seconds_since(start), kTimeout);
    EXPECT_LT(seconds_since(start), kSoon);
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_THAT(error.message, HasSubstr("waited 0.5 s in '" + what + "' for rank " + std::to_string(size - 1) +
                                         " (pid "));
    EXPECT_THAT(error.message, HasSubstr("in 'reading data' at step 7"));
    EXPECT_THAT(error.message, Not(HasSubstr("in 'forward'")));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == size - 1) wait();
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(Timeout, of_a_communicator_names_the_late_rank_and_its_place) {
  Session session(nullptr, nullptr, testing::session_options(0, kTimeout));
  expect_that_the_last_is_named(session, "losses", [&] { session.world().barrier("losses"); });
}

TEST(Timeout, of_a_node_barrier_names_the_late_rank_and_its_place) {
  Session session(nullptr, nullptr, testing::session_options(0, kTimeout));
  expect_that_the_last_is_named(session, "publish", [&] { session.node().barrier("publish"); });
}

TEST(Timeout, can_be_changed_on_the_way) {
  Session session(nullptr, nullptr, testing::session_options());
  session.set_timeout(std::chrono::duration<double>(kTimeout));
  EXPECT_EQ(session.world().timeout().count(), kTimeout);
  expect_that_the_last_is_named(session, "gather", [&] { session.node().barrier("gather"); });
}

TEST(Timeout, on_another_node_is_said_to_be_there) {
  Session session(nullptr, nullptr, testing::session_options(1, kTimeout));
  Communicator& world = session.world();
  if (world.size() != 2) GTEST_SKIP() << "a test for two ranks";
  MPI_Barrier(MPI_COMM_WORLD);
  if (world.rank() == Rank(0)) {
    const auto start = Clock::now();
    const Error error = error_of([&] { world.barrier("step"); });
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_THAT(error.message, HasSubstr("a rank on another node"));
    EXPECT_LT(seconds_since(start), kSoon);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (world.rank() == Rank(1)) world.barrier("step");
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(Timeout, of_a_transfer_comes_in_time) {
  Session session(nullptr, nullptr, testing::session_options(1, kTimeout));
  Communicator& world = session.world();
  if (world.size() != 2) GTEST_SKIP() << "a test for two ranks";
  ByteVector bytes(8);
  MPI_Barrier(MPI_COMM_WORLD);
  Transfers transfers(world);
  if (world.rank() == Rank(0)) {
    transfers.receive(Rank(1), 0, bytes);
    EXPECT_EQ(error_of([&] { transfers.wait("shards"); }).kind, ErrorKind::kTimeout);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (world.rank() == Rank(1)) transfers.send(Rank(0), 0, bytes);
  // Whoever caught the error may wait once more.
  EXPECT_NO_THROW(transfers.wait("shards"));
}

// A process that can be ended while the test goes on: it stands for that of another rank.
class Victim {
 public:
  Victim() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
    descriptor = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~Victim() {
    kill();
    waitpid(pid_, nullptr, 0);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;
  void kill() const { ::kill(pid_, SIGKILL); }

  FileDescriptor descriptor;

 private:
  pid_t pid_;
};

class PeerLost : public ::testing::Test {
 protected:
  PeerLost() {
    CommHandle comm;
    MPI_Comm_dup(MPI_COMM_WORLD, comm.address());
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    auto made = make_node_group(std::move(comm), ranks, std::chrono::duration<double>(40));
    impl = made.get();
    node.emplace(std::move(made));
    CommHandle other;
    MPI_Comm_dup(MPI_COMM_WORLD, other.address());
    world.emplace(make_communicator(std::move(other), &*node, impl, std::chrono::duration<double>(40)));
  }

  NodeGroup::Impl* impl = nullptr;
  std::optional<NodeGroup> node;
  std::optional<Communicator> world;
};

TEST_F(PeerLost, names_a_process_that_has_ended) {
  Victim victim;
  if (!victim.descriptor) GTEST_SKIP() << "this kernel has no pidfd_open";
  impl->processes[0] = std::move(victim.descriptor);
  node->set_place("backward", 3);
  EXPECT_NO_THROW(node->check_alive("a barrier"));
  victim.kill();
  Error error(ErrorKind::kInternal, "not noticed in 5 s");
  for (const Deadline deadline = Deadline::after(std::chrono::seconds(5)); !deadline.expired();) {
    try {
      node->check_alive("a barrier");
    } catch (const Error& thrown) {
      error = thrown;
      break;
    }
  }
  EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
  EXPECT_THAT(error.message, HasSubstr("rank 0 (pid "));
  EXPECT_THAT(error.message, HasSubstr("has ended while others waited in 'a barrier'"));
  MPI_Barrier(MPI_COMM_WORLD);
}

// Rank 0 waits for the others, one of which "dies" meanwhile: it must not wait for the deadline of 40 s.
TEST_F(PeerLost, ends_a_wait_at_once) {
  if (impl->size == 1) GTEST_SKIP() << "nobody to wait for";
  const int last = impl->size - 1;
  for (const bool on_node : {true, false}) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto wait = [&] { on_node ? node->barrier("gather") : world->barrier("gather"); };
    if (impl->rank == 0) {
      Victim victim;
      ASSERT_TRUE(victim.descriptor) << "this kernel has no pidfd_open";
      impl->processes[static_cast<std::size_t>(last)] = std::move(victim.descriptor);
      victim.kill();
      const auto start = Clock::now();
      const Error error = error_of(wait);
      EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
      EXPECT_THAT(error.message, HasSubstr("rank " + std::to_string(last) + " (pid "));
      EXPECT_LT(seconds_since(start), kSoon);
      impl->processes[static_cast<std::size_t>(last)].reset();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (impl->rank != 0) wait();
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

}  // namespace
}  // namespace trireme::comm
