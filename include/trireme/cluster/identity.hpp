// Who this process is, from the variables of launchers and schedulers. Pure functions over an
// environment map; MPI is the judge, and a contradiction between two sources is refused with both
// named.
#pragma once

#include "trireme/base/environment.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

struct Identity {
  // "torch elastic", "jsrun", "Open MPI", "MVAPICH2", "PALS", "Flux", "Hydra", "Slurm", "PMI",
  // "torch variables", "PMIx", "pbsdsh" (which gives no rank), or "none"
  std::string launcher;
  std::optional<int> rank, size;
  std::optional<int> local_rank, local_size;
  std::optional<int> node, nodes;       // this rank's node, of how many, where the launcher tells
  std::string source;                   // the variable that gave the rank, "OMPI_COMM_WORLD_RANK"
  std::string size_source;              // the variable that gave the size
  std::optional<std::string> job;       // "Slurm 1234" when inside one
  std::optional<double> deadline_unix;  // the job's end as Unix time, where the scheduler tells it
};

// Returns what the environment says, which is best read before MPI_Init adds to it. The innermost
// launcher wins: under mpirun in a Slurm job, Slurm's own variables describe the daemon or the
// batch script. Throws Environment when variables of one launcher, or two launchers of which
// neither can have started the other, contradict each other.
Identity identify(const Environment& environment);

// Before MPI_Init: throws Environment when srun started this process without the help that an MPI of
// this kind ("Open MPI 4.1.4") needs to find the other ranks, which it would say in forty lines.
void check_before_mpi(const Identity& identity, const Environment& environment,
                      std::string_view mpi);

// Throws Environment when the launcher says `size` processes but MPI has another size: each process
// would train alone (srun without --mpi, an MPI of another kind, pbsdsh), naming variable, both
// numbers and the remedy. Each of those processes is MPI rank 0, so the error carries the
// launcher's rank for whoever prints it only once.
void check_against_mpi(const Identity& identity, int mpi_rank, int mpi_size);

// What rank a process believes to have, as its launcher told it; -1 when nothing did.
struct Claim {
  int rank = -1;
};

// Throws Environment when two processes claim the same rank or only some claim one: a variable that
// the batch script exported stands in the way of the launcher's. `claims` are those of all ranks in
// MPI's order, which itself need not be the launcher's: some MPIs reorder on request.
void check_claims(const Identity& identity, const std::vector<Claim>& claims);

// How many processors this process may run on (affinity mask and cgroup quota), at least 1.
int usable_cores();

}  // namespace trireme::cluster
