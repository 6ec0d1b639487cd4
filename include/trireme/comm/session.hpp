// MPI from start to end: one object owned by main, from which communicators and the node's group
// are passed down.
#pragma once

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/node_group.hpp"

#include <chrono>
#include <memory>
#include <vector>

namespace trireme::comm {

struct SessionOptions {
  std::chrono::duration<double> timeout{600};
  // Tests only: treat groups of this many ranks as separate nodes, so that everything between nodes
  // can be exercised on one machine. 0 = real nodes.
  int ranks_per_node = 0;
};

// Ranks are numbered node by node, so that the ranks of a node are consecutive whatever the
// launcher's order was.
struct Topology {
  int num_nodes = 1;
  int node = 0;                 // this rank's node
  std::vector<int> first_rank;  // first rank of each node, and the world size at the end

  int ranks_on(int node_index) const;
  int node_of(int rank) const;
};

class Session {
 public:
  // @collective. Initialises MPI, unless the program around it has, and makes the world and node
  // groups.
  Session(int* argc, char*** argv, const SessionOptions& options);
  // Finalises MPI if it was initialised here and no exception is in flight: a rank that failed must
  // not wait for the others in MPI_Finalize.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Communicator& world();
  NodeGroup& node();
  const Topology& topology() const;

  // Ends the whole job with this exit code; does not return. Only app/main calls it.
  [[noreturn]] void abort(int code);

  void set_timeout(std::chrono::duration<double> timeout);

  // @collective. The same ranks in the same order, each as a node of its own: for memory that no
  // rank shares with others.
  std::unique_ptr<Session> each_alone();

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::comm
