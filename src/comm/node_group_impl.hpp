// What the session hands to NodeGroup. Private to the room.
#pragma once

#include "trireme/comm/node_group.hpp"

#include "mpi/check.hpp"

#include <array>

namespace trireme::comm {

// One per local rank, in shared memory, on cache lines of its own.
struct alignas(128) RankStatus {
  std::atomic<std::uint64_t> barriers;     // how many barriers this rank has entered
  std::atomic<std::uint64_t> collectives;  // how many world collectives it has entered
  std::atomic<std::uint64_t> beats;        // goes up while it waits for others
  std::atomic<std::int64_t> step;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t> waits;  // how many waits it is in; they may nest
  std::array<std::atomic<char>, 40> place;
};

struct SharedSegments::Impl {
  MPI_Win window = MPI_WIN_NULL;
  std::vector<std::span<std::byte>> segments;
  ~Impl();
};

struct NodeGroup::Impl {
  CommHandle comm;
  int rank = 0;
  int size = 1;
  std::vector<int> world_ranks;
  std::chrono::duration<double> timeout{600};
  std::unique_ptr<SharedSegments> status_memory;
  std::vector<FileDescriptor> processes;  // pidfds of the other ranks, where the kernel has them
  std::uint64_t barriers = 0;

  RankStatus& status(int local) const {
    return *reinterpret_cast<RankStatus*>(status_memory->of(local).data());
  }
  // Returns the local ranks that have entered fewer world collectives than this one.
  std::vector<int> behind_in_collectives() const;
};

std::unique_ptr<NodeGroup::Impl> make_node_group(CommHandle comm, std::vector<int> world_ranks,
                                                 std::chrono::duration<double> timeout);

}  // namespace trireme::comm
