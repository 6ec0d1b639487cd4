// Who this process is, from the variables of launchers and schedulers. Pure functions over an environment map; MPI is the
// judge, and a contradiction between two sources is refused with both named.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/environment.hpp"

namespace trireme::cluster {

struct Identity {
  std::string launcher;                    // "Open MPI", "Slurm", "PALS", "Flux", "Hydra", "torch elastic", "none"
  std::optional<int> rank, size;
  std::optional<int> local_rank, local_size;
  std::string source;                      // the variables that said so, "OMPI_COMM_WORLD_RANK"
  std::optional<std::string> job;          // "Slurm 1234" when inside one
  std::optional<double> deadline_unix;     // the job's end as Unix time, where the scheduler tells it
};

// Returns what the environment says. Throws Environment when two sources contradict each other.
Identity identify(const Environment& environment);

// Throws Environment when the launcher says `size` processes but MPI has another size: each process would train alone
// (srun without --mpi, an MPI of another kind), naming variable, both numbers and the remedy.
void check_against_mpi(const Identity& identity, int mpi_rank, int mpi_size);

// How many processors this process may run on (affinity mask and cgroup quota), at least 1.
int usable_cores();

}  // namespace trireme::cluster
