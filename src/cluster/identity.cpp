#include "trireme/cluster/identity.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>

namespace trireme::cluster {

namespace {

using Name = std::string_view;

// What one launcher sets for each process that it starts. An empty name: it sets nothing of that
// kind.
struct Launcher {
  Name name;
  Name marker;  // must be set too, where the other names are too common to prove anything
  Name rank;
  std::array<Name, 2> size;  // the first that is set counts
  Name local_rank;
  std::array<Name, 2> local_size;
  Name twin_rank = {};  // set by the same launcher for the same process: must agree with `rank`
  Name twin_size = {};
};

// Innermost first: whoever is found first started this process, and what stands below describes
// something around it. PMIX_RANK is not used: a proxy's may be inherited.
constexpr std::array kLaunchers{
    Launcher{"torch elastic",
             "TORCHELASTIC_RUN_ID",
             "RANK",
             {"WORLD_SIZE"},
             "LOCAL_RANK",
             {"LOCAL_WORLD_SIZE"}},
    Launcher{"jsrun",
             "",
             "JSM_NAMESPACE_RANK",
             {"JSM_NAMESPACE_SIZE"},
             "JSM_NAMESPACE_LOCAL_RANK",
             {"JSM_NAMESPACE_LOCAL_SIZE"},
             "OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_SIZE"},
    Launcher{"Open MPI",
             "",
             "OMPI_COMM_WORLD_RANK",
             {"OMPI_COMM_WORLD_SIZE"},
             "OMPI_COMM_WORLD_LOCAL_RANK",
             {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
    Launcher{"MVAPICH2",
             "",
             "MV2_COMM_WORLD_RANK",
             {"MV2_COMM_WORLD_SIZE"},
             "MV2_COMM_WORLD_LOCAL_RANK",
             {"MV2_COMM_WORLD_LOCAL_SIZE"}},
    Launcher{"PALS",
             "",
             "PALS_RANKID",
             {"PALS_SIZE", "PMI_SIZE"},
             "PALS_LOCAL_RANKID",
             {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"},
             "PMI_RANK"},
    Launcher{"Flux",
             "",
             "FLUX_TASK_RANK",
             {"FLUX_JOB_SIZE"},
             "FLUX_TASK_LOCAL_ID",
             {},
             "PMI_RANK",
             "PMI_SIZE"},
    // MPICH's and Intel MPI's mpiexec.
    Launcher{"Hydra",
             "MPI_LOCALRANKID",
             "PMI_RANK",
             {"PMI_SIZE"},
             "MPI_LOCALRANKID",
             {"MPI_LOCALNRANKS"}},
    // A step only: a batch script has SLURM_PROCID and SLURM_NTASKS too, and is alone.
    Launcher{"Slurm",
             "SLURM_STEP_ID",
             "SLURM_PROCID",
             {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
             "SLURM_LOCALID",
             {},
             "PMI_RANK",
             "PMI_SIZE"},
    Launcher{"PMI", "PMI_FD", "PMI_RANK", {"PMI_SIZE"}, "PMI_LOCAL_RANK", {"PMI_LOCAL_SIZE"}},
};

// Launchers of which neither starts the other; when both left variables, one set is a leftover (a
// job submitted from inside a running one), and which one cannot be told.
constexpr std::array<std::array<Name, 2>, 3> kRivals{{
    {"OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"},
    {"OMPI_COMM_WORLD_RANK", "PALS_RANKID"},
    {"MV2_COMM_WORLD_RANK", "PALS_RANKID"},
}};

[[noreturn]] void fail(std::string message, std::string hint) {
  throw Error(ErrorKind::kEnvironment, std::move(message), std::move(hint));
}

constexpr const char* kLeftover =
    "unset the variables that an earlier launcher left (env | sort shows them), or start from a "
    "clean shell";

std::optional<int> number(const Environment& environment, Name name) {
  if (name.empty()) return std::nullopt;
  const auto text = lookup(environment, name);
  if (!text) return std::nullopt;
  int value = -1;
  const char* end = text->data() + text->size();
  const auto [stopped, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stopped != end || value < 0) {
    fail(fmt::format("{}='{}' is not a number of 0 or more", name, *text), kLeftover);
  }
  return value;
}

Name first_set(const Environment& environment, const std::array<Name, 2>& names) {
  for (const Name name : names) {
    if (!name.empty() && environment.contains(name)) return name;
  }
  return {};
}

void require_same(const Environment& environment, Name name, Name twin) {
  const auto value = number(environment, name);
  const auto other = number(environment, twin);
  if (value && other && *value != *other) {
    fail(fmt::format("{}={} and {}={} contradict each other", name, *value, twin, *other),
         kLeftover);
  }
}

// Slurm's batch script and interactive shell are steps of their own in some set-ups, with reserved
// numbers (slurm.h: SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT).
bool is_reserved_step(const Environment& environment) {
  const auto step = lookup(environment, "SLURM_STEP_ID");
  return step && (*step == "4294967290" || *step == "4294967291" || *step == "4294967292");
}

bool started_by(const Launcher& launcher, const Environment& environment) {
  if (!environment.contains(launcher.rank)) return false;
  if (!launcher.marker.empty() && !environment.contains(launcher.marker)) return false;
  return launcher.name != "Slurm" || !is_reserved_step(environment);
}

// The tasks on this node from "2(x2),1": two nodes with two tasks each, then one with one.
std::optional<int> slurm_local_size(const Environment& environment) {
  const auto text = lookup(environment, "SLURM_STEP_TASKS_PER_NODE");
  const auto node = number(environment, "SLURM_NODEID");
  if (!text || !node) return std::nullopt;
  long first_node = 0;
  const char* at = text->data();
  const char* const end = at + text->size();
  while (at < end) {
    int tasks = 0;
    long nodes = 1;
    const auto count = std::from_chars(at, end, tasks);
    if (count.ec != std::errc{}) break;
    at = count.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      const auto repeat = std::from_chars(at + 2, end, nodes);
      if (repeat.ec != std::errc{} || repeat.ptr == end || *repeat.ptr != ')') break;
      at = repeat.ptr + 1;
    }
    if (*node < first_node + nodes) return tasks;
    first_node += nodes;
    if (at < end && *at++ != ',') break;
  }
  fail(fmt::format("SLURM_STEP_TASKS_PER_NODE='{}' does not tell the tasks of SLURM_NODEID={}",
                   *text, *node),
       kLeftover);
}

void read_ranks(const Launcher& launcher, const Environment& environment, Identity& identity) {
  const Name size_name = first_set(environment, launcher.size);
  if (size_name.empty()) {
    fail(fmt::format("{} is set but {} is not", launcher.rank, launcher.size[0]), kLeftover);
  }
  identity.launcher = launcher.name;
  identity.rank = number(environment, launcher.rank);
  identity.size = number(environment, size_name);
  identity.local_rank = number(environment, launcher.local_rank);
  identity.local_size = launcher.name == "Slurm"
                            ? slurm_local_size(environment)
                            : number(environment, first_set(environment, launcher.local_size));
  identity.source = launcher.rank;
  identity.size_source = size_name;
  if (*identity.rank >= *identity.size) {
    fail(fmt::format("{}={} is not below {}={}", launcher.rank, *identity.rank, size_name,
                     *identity.size),
         kLeftover);
  }
  if (identity.local_rank && identity.local_size && *identity.local_rank >= *identity.local_size) {
    fail(fmt::format("{}={} is not below the {} processes of this node", launcher.local_rank,
                     *identity.local_rank, *identity.local_size),
         kLeftover);
  }
  require_same(environment, launcher.rank, launcher.twin_rank);
  require_same(environment, size_name, launcher.twin_size);
}

// The job around the process. Flux first, since it runs inside the others' jobs; Slurm before PBS,
// since Slurm's qsub sets PBS names as well.
std::optional<std::string> job_of(const Environment& environment) {
  constexpr std::array<std::array<Name, 2>, 5> kJobs{{{"Flux", "FLUX_JOB_ID"},
                                                      {"Slurm", "SLURM_JOB_ID"},
                                                      {"Slurm", "SLURM_JOBID"},
                                                      {"PBS", "PBS_JOBID"},
                                                      {"LSF", "LSB_JOBID"}}};
  for (const auto& [scheduler, name] : kJobs) {
    if (const auto job = lookup(environment, name); job && !job->empty())
      return fmt::format("{} {}", scheduler, *job);
  }
  return std::nullopt;
}

// Slurm 22.05 and older do not set it; what is no number ("Unknown") is no deadline.
std::optional<double> deadline_of(const Environment& environment) {
  const auto text = lookup(environment, "SLURM_JOB_END_TIME");
  if (!text) return std::nullopt;
  double value = 0;
  const char* end = text->data() + text->size();
  const auto [stopped, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stopped != end || !(value > 0)) return std::nullopt;
  return value;
}

std::string remedy(const Identity& identity) {
  if (identity.launcher == "Slurm") {
    return "start with srun --mpi=pmix (srun --mpi=list shows what this Slurm has), or with mpirun "
           "inside the job";
  }
  if (identity.launcher == "torch elastic")
    return "start trireme with mpirun or srun, not with torchrun";
  return fmt::format(
      "start with the mpirun of the MPI that trireme is built with (trireme --version names it), not "
      "with "
      "another MPI's launcher; the processes were started by {}",
      identity.launcher);
}

}  // namespace

Identity identify(const Environment& environment) {
  Identity identity;
  identity.launcher = "none";
  identity.job = job_of(environment);
  identity.deadline_unix = deadline_of(environment);
  for (const auto& [first, second] : kRivals) require_same(environment, first, second);
  for (const Launcher& launcher : kLaunchers) {
    if (!started_by(launcher, environment)) continue;
    read_ranks(launcher, environment, identity);
    break;
  }
  return identity;
}

void check_against_mpi(const Identity& identity, int mpi_rank, int mpi_size) {
  if (!identity.size || *identity.size == mpi_size) return;
  Error error(
      ErrorKind::kEnvironment,
      fmt::format("{} says {} processes but MPI has {}{}", identity.size_source, *identity.size,
                  mpi_size, mpi_size == 1 ? ": each process would train alone" : ""),
      remedy(identity));
  error.rank = identity.rank.value_or(mpi_rank);
  throw error;
}

}  // namespace trireme::cluster
