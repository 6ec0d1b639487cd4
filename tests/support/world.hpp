// The ranks that run a test together: one without MPI, all of MPI_COMM_WORLD with it. support/main.cpp uses it; the two
// implementations are chosen by trireme_test (serial/ without RANKS, mpi/ with).
#pragma once

#include <memory>

namespace trireme::testing {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Agrees on the exit code, the highest of all ranks', and on rank 0 names the ranks that failed. @collective
  virtual int agree(int exit_code) = 0;
};

// Starts MPI where the test has ranks. Destruction ends it.
std::unique_ptr<World> make_world(int* argc, char*** argv);

}  // namespace trireme::testing
