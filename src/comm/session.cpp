#include "trireme/comm/session.hpp"

#include "trireme/base/error.hpp"

#include "communicator_impl.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace trireme::comm {

namespace {

// When all ranks are on this machine, only shared memory can matter. Open MPI would still open every
// network that it knows: 0.25 s of its start against 0.03 s. What the user has set stays as it is.
void leave_networks_closed_on_one_machine() {
#ifdef OMPI_MAJOR_VERSION
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (size == nullptr || here == nullptr || std::strcmp(size, here) != 0) return;
  constexpr int kKeep = 0;
  setenv("OMPI_MCA_pml", "ob1", kKeep);
  setenv("OMPI_MCA_btl", OMPI_MAJOR_VERSION < 5 ? "self,vader" : "self,sm", kKeep);
#endif
}

// Returns whether MPI was started here, and not by a program that this library is a part of.
bool initialise_mpi(int* argc, char*** argv) {
  if (mpi_is_up()) return false;
  leave_networks_closed_on_one_machine();
  int provided = 0;
  check(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(ErrorKind::kEnvironment,
                "this MPI library does not allow threads beside the one that calls it",
                "use an MPI library built with thread support");
  }
  return true;
}

CommHandle split_by_node(int ranks_per_node) {
  CommHandle node;
  if (ranks_per_node > 0) {
    int rank = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check(MPI_Comm_split(MPI_COMM_WORLD, rank / ranks_per_node, rank, node.address()),
          "MPI_Comm_split");
  } else {
    check(
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, node.address()),
        "MPI_Comm_split_type");
  }
  return node;
}

// Returns a world communicator in which the ranks of a node are consecutive: ordered by the lowest
// original rank of the node, then by original rank.
CommHandle order_by_node(MPI_Comm node) {
  int rank = 0;
  int size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  int leader = rank;
  check(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast");
  std::vector<int> leaders(static_cast<std::size_t>(size));
  check(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, MPI_COMM_WORLD),
        "MPI_Allgather");
  int key = 0;
  for (int other = 0; other < size; ++other) {
    const int their_leader = leaders[static_cast<std::size_t>(other)];
    if (their_leader < leader || (their_leader == leader && other < rank)) ++key;
  }
  CommHandle world;
  check(MPI_Comm_split(MPI_COMM_WORLD, 0, key, world.address()), "MPI_Comm_split");
  return world;
}

Topology find_topology(MPI_Comm world, MPI_Comm node) {
  int rank = 0;
  int size = 0;
  int local_size = 0;
  check(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(world, &size), "MPI_Comm_size");
  check(MPI_Comm_size(node, &local_size), "MPI_Comm_size");
  std::vector<int> sizes(static_cast<std::size_t>(size));
  check(MPI_Allgather(&local_size, 1, MPI_INT, sizes.data(), 1, MPI_INT, world), "MPI_Allgather");
  Topology topology;
  for (int first = 0; first < size; first += sizes[static_cast<std::size_t>(first)]) {
    topology.first_rank.push_back(first);
  }
  topology.first_rank.push_back(size);
  topology.num_nodes = static_cast<int>(topology.first_rank.size()) - 1;
  topology.node = topology.node_of(rank);
  return topology;
}

}  // namespace

int Topology::node_of(int rank) const {
  const auto after = std::upper_bound(first_rank.begin(), first_rank.end(), rank);
  return static_cast<int>(after - first_rank.begin()) - 1;
}

int Topology::ranks_on(int node_index) const {
  const auto index = static_cast<std::size_t>(node_index);
  return first_rank[index + 1] - first_rank[index];
}

struct Session::Impl {
  bool owns_mpi = false;
  Topology topology;
  NodeGroup::Impl* node_impl = nullptr;
  std::unique_ptr<NodeGroup> node;
  std::unique_ptr<Communicator> world;

  // @collective.
  void connect(CommHandle world_comm, CommHandle node_comm, std::chrono::duration<double> timeout);
};

void Session::Impl::connect(CommHandle world_comm, CommHandle node_comm,
                            std::chrono::duration<double> timeout) {
  topology = find_topology(world_comm.get(), node_comm.get());
  std::vector<int> world_ranks;
  const int first = topology.first_rank[static_cast<std::size_t>(topology.node)];
  for (int local = 0; local < topology.ranks_on(topology.node); ++local) {
    world_ranks.push_back(first + local);
  }
  auto made = make_node_group(std::move(node_comm), std::move(world_ranks), timeout);
  node_impl = made.get();
  node = std::make_unique<NodeGroup>(std::move(made));
  world = std::make_unique<Communicator>(
      make_communicator(std::move(world_comm), node.get(), node_impl, timeout));
}

Session::Session(int* argc, char*** argv, const SessionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->owns_mpi = initialise_mpi(argc, argv);
  CommHandle node = split_by_node(options.ranks_per_node);
  CommHandle world = order_by_node(node.get());
  impl_->connect(std::move(world), std::move(node), options.timeout);
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<Session> Session::each_alone() {
  const MPI_Comm all = *static_cast<const MPI_Comm*>(world().native());
  CommHandle same;
  CommHandle alone;
  check(MPI_Comm_dup(all, same.address()), "MPI_Comm_dup");
  check(MPI_Comm_split(all, static_cast<int>(world().rank().value), 0, alone.address()),
        "MPI_Comm_split");
  auto impl = std::make_unique<Impl>();
  impl->connect(std::move(same), std::move(alone), world().timeout());
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Session::~Session() {
  const bool failing = std::uncaught_exceptions() > 0;
  const bool owns_mpi = impl_->owns_mpi;
  impl_.reset();
  if (owns_mpi && !failing && mpi_is_up()) MPI_Finalize();
}

Communicator& Session::world() { return *impl_->world; }
NodeGroup& Session::node() { return *impl_->node; }
const Topology& Session::topology() const { return impl_->topology; }

void Session::set_timeout(std::chrono::duration<double> timeout) {
  impl_->node_impl->timeout = timeout;
  impl_->world->set_timeout(timeout);
}

void Session::abort(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);  // house: allow, this is what app/main ends a job with
  std::_Exit(code);                 // house: allow, in case MPI returns
}

}  // namespace trireme::comm
