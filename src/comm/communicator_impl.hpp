// What the session hands to Communicator. Private to the room.
#pragma once

#include "trireme/comm/communicator.hpp"

#include "mpi/check.hpp"
#include "node_group_impl.hpp"

namespace trireme::comm {

struct Communicator::Impl {
  CommHandle comm;
  int rank = 0;
  int size = 1;
  std::chrono::duration<double> timeout{600};
  NodeGroup* node = nullptr;  // whose health is watched while waiting
  NodeGroup::Impl* node_impl = nullptr;

  // Waits for all requests, polling, with this communicator's deadline; calls `idle` between polls.
  void wait(std::span<MPI_Request> requests, std::string_view what,
            const std::function<void()>& idle = {});
  // Counts the entry into a collective, so that a late rank can be named.
  void enter();
};

std::unique_ptr<Communicator::Impl> make_communicator(CommHandle comm, NodeGroup* node,
                                                      NodeGroup::Impl* node_impl,
                                                      std::chrono::duration<double> timeout);

}  // namespace trireme::comm
