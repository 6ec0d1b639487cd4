#include "trireme/cluster/identity.hpp"

#include "trireme/base/error.hpp"
#include "trireme/cluster/hosts.hpp"
#include "trireme/cluster/job.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <numeric>
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
  std::array<Name, 3> size;  // the first that is set counts
  Name local_rank;
  std::array<Name, 2> local_size;
  Name twin_rank = {};  // set by the same launcher for the same process: must agree with `rank`
  Name twin_size = {};
  Name node = {};
  std::array<Name, 2> nodes = {};
};

// Innermost first: whoever is found first started this process, and what stands below describes
// something around it.
constexpr std::array kLaunchers{
    Launcher{"torch elastic",
             "TORCHELASTIC_RUN_ID",
             "RANK",
             {"WORLD_SIZE"},
             "LOCAL_RANK",
             {"LOCAL_WORLD_SIZE"},
             "",
             "",
             "GROUP_RANK",
             {"GROUP_WORLD_SIZE"}},
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
             "PMI_RANK",
             "",
             "PALS_NODEID"},
    Launcher{"Flux",
             "",
             "FLUX_TASK_RANK",
             {"FLUX_JOB_SIZE"},
             "FLUX_TASK_LOCAL_ID",
             {},
             "PMI_RANK",
             "PMI_SIZE",
             "",
             {"FLUX_JOB_NNODES"}},
    // MPICH's and Intel MPI's mpiexec.
    Launcher{"Hydra",
             "MPI_LOCALRANKID",
             "PMI_RANK",
             {"PMI_SIZE"},
             "MPI_LOCALRANKID",
             {"MPI_LOCALNRANKS"}},
    // A step only: a batch script has SLURM_PROCID and SLURM_NTASKS too, and is alone.
    Launcher{"Slurm",
             "",  // started_by() looks for the step's number under two names
             "SLURM_PROCID",
             {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
             "SLURM_LOCALID",
             {},
             "PMI_RANK",
             "PMI_SIZE",
             "SLURM_NODEID",
             {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}},
    Launcher{"PMI", "PMI_FD", "PMI_RANK", {"PMI_SIZE"}, "PMI_LOCAL_RANK", {"PMI_LOCAL_SIZE"}},
    // What DeepSpeed's launcher and scripts of one's own set for PyTorch, with nobody else around.
    Launcher{"torch variables",
             "MASTER_ADDR",
             "RANK",
             {"WORLD_SIZE"},
             "LOCAL_RANK",
             {"LOCAL_WORLD_SIZE"}},
    // Last: a proxy's PMIX_RANK may be inherited. How many ranks there are only its server knows.
    Launcher{"PMIx", "PMIX_NAMESPACE", "PMIX_RANK", {}, "", {}},
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

constexpr const char* kFrozen =
    "a batch script runs once, with rank 0, so what it exports is the same for every rank: set "
    "such "
    "variables in the command that the launcher starts, as in srun bash -c 'RANK=$SLURM_PROCID "
    "...', or leave them out; trireme asks the launcher itself";

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

template <std::size_t Count>
Name first_set(const Environment& environment, const std::array<Name, Count>& names) {
  for (const Name name : names) {
    if (!name.empty() && environment.contains(name)) return name;
  }
  return {};
}

void require_same(const Environment& environment, Name name, Name twin,
                  const char* hint = kLeftover) {
  const auto value = number(environment, name);
  const auto other = number(environment, twin);
  if (value && other && *value != *other) {
    fail(fmt::format("{}={} and {}={} contradict each other", name, *value, twin, *other), hint);
  }
}

// The second name is the older one.
std::optional<std::string> step_of(const Environment& environment) {
  const auto step = lookup(environment, "SLURM_STEP_ID");
  return step ? step : lookup(environment, "SLURM_STEPID");
}

// Slurm's batch script and interactive shell are steps of their own in some set-ups, with reserved
// numbers (slurm.h: SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT).
bool is_reserved_step(const Environment& environment) {
  const auto step = step_of(environment);
  return step && (*step == "4294967290" || *step == "4294967291" || *step == "4294967292");
}

bool started_by(const Launcher& launcher, const Environment& environment) {
  if (!environment.contains(launcher.rank)) return false;
  if (launcher.name == "Slurm") return step_of(environment) && !is_reserved_step(environment);
  return launcher.marker.empty() || environment.contains(launcher.marker);
}

// The tasks on this node, where SLURM_STEP_TASKS_PER_NODE is "2(x2),1". Older versions have only the
// variable of the job, which then has to fit the step.
std::optional<int> slurm_local_size(const Environment& environment, int size) {
  const Name name = first_set(
      environment, std::array<Name, 2>{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const auto node = number(environment, "SLURM_NODEID");
  if (name.empty() || !node) return std::nullopt;
  const std::string text = *lookup(environment, name);
  const std::vector<int> tasks = expand_counts(text);
  const bool of_step = name == "SLURM_STEP_TASKS_PER_NODE";
  const bool known = static_cast<std::size_t>(*node) < tasks.size();
  const int total = std::accumulate(tasks.begin(), tasks.end(), 0);
  if (!of_step && (!known || total != size)) return std::nullopt;
  if (!known)
    fail(fmt::format("{}='{}' does not tell the tasks of SLURM_NODEID={}", name, text, *node),
         kLeftover);
  if (total != size)
    fail(fmt::format("{}='{}' makes {} tasks, but the step has {}", name, text, total, size),
         kLeftover);
  return tasks[static_cast<std::size_t>(*node)];
}

// Flux tells no size per node; where all nodes have as many ranks as this one can have, it follows.
std::optional<int> flux_local_size(const Identity& identity) {
  if (!identity.nodes || *identity.nodes == 0 || *identity.size % *identity.nodes != 0)
    return std::nullopt;
  const int each = *identity.size / *identity.nodes;
  const bool fits = identity.local_rank && *identity.rank % each == *identity.local_rank;
  return fits ? std::optional(each) : std::nullopt;
}

std::optional<int> local_size_of(const Launcher& launcher, const Environment& environment,
                                 const Identity& identity) {
  if (launcher.name == "Slurm") return slurm_local_size(environment, *identity.size);
  if (launcher.name == "Flux") return flux_local_size(identity);
  return number(environment, first_set(environment, launcher.local_size));
}

void require_below(Name name, int value, Name limit_name, int limit) {
  if (value >= limit)
    fail(fmt::format("{}={} is not below {}={}", name, value, limit_name, limit), kLeftover);
}

void read_ranks(const Launcher& launcher, const Environment& environment, Identity& identity) {
  identity.launcher = launcher.name;
  identity.rank = number(environment, launcher.rank);
  identity.source = launcher.rank;
  if (launcher.size[0].empty()) return;
  const Name size_name = first_set(environment, launcher.size);
  if (size_name.empty())
    fail(fmt::format("{} is set but {} is not", launcher.rank, launcher.size[0]), kLeftover);
  identity.size = number(environment, size_name);
  identity.size_source = size_name;
  require_below(launcher.rank, *identity.rank, size_name, *identity.size);
  identity.local_rank = number(environment, launcher.local_rank);
  identity.node = number(environment, launcher.node);
  const Name nodes_name = first_set(environment, launcher.nodes);
  identity.nodes = number(environment, nodes_name);
  if (identity.node && identity.nodes)
    require_below(launcher.node, *identity.node, nodes_name, *identity.nodes);
  identity.local_size = local_size_of(launcher, environment, identity);
  if (identity.local_rank && identity.local_size && *identity.local_rank >= *identity.local_size) {
    fail(fmt::format("{}={} is not below the {} processes of this node", launcher.local_rank,
                     *identity.local_rank, *identity.local_size),
         kLeftover);
  }
  require_same(environment, launcher.rank, launcher.twin_rank);
  require_same(environment, size_name, launcher.twin_size);
}

// mpirun sets a PMIx name space of its own; where srun's stands, or none, in a step of Slurm, then
// srun started this process and Open MPI's variables were exported by somebody.
void check_exported_open_mpi(const Environment& environment) {
  if (!environment.contains("OMPI_COMM_WORLD_RANK") || !step_of(environment) ||
      is_reserved_step(environment) || environment.contains("OMPI_MCA_orte_hnp_uri"))
    return;
  const auto name_space = lookup(environment, "PMIX_NAMESPACE");
  if (name_space && !name_space->starts_with("slurm.")) return;
  require_same(environment, "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", kFrozen);
}

// RANK, LOCAL_RANK and WORLD_SIZE are what scripts set for PyTorch. Trireme does not need them; where
// they say something else than the launcher the script is wrong, and so may be all that follows it.
void check_exported_place(const Environment& environment, const Identity& identity) {
  if (!identity.rank || identity.source == "RANK" || !environment.contains("RANK")) return;
  require_same(environment, "RANK", identity.source, kFrozen);
  if (!identity.size_source.empty())
    require_same(environment, "WORLD_SIZE", identity.size_source, kFrozen);
}

// A task that PBS's task manager started, and no part of a parallel program: pbsdsh. The script
// itself is task 1; the node stands in the upper bits of the others.
bool is_pbsdsh_task(const Environment& environment) {
  const auto task = lookup(environment, "PBS_TASKNUM");
  return environment.contains("PBS_JOBID") && !environment.contains("SLURM_JOB_ID") && task &&
         *task != "1";
}

std::optional<std::string> job_text(const Environment& environment) {
  const auto job = job_named(environment);
  return job ? std::optional(fmt::format("{} {}", job->scheduler, job->id)) : std::nullopt;
}

std::string remedy(const Identity& identity) {
  if (identity.launcher == "Slurm") {
    return "start with srun --mpi=pmix (srun --mpi=list shows what this Slurm has), or with mpirun "
           "inside the job";
  }
  if (identity.launcher == "torch elastic")
    return "start trireme with mpirun or srun, not with torchrun";
  if (identity.launcher == "torch variables")
    return "start trireme with mpirun or srun; for a process on its own, unset RANK and WORLD_SIZE";
  if (identity.launcher == "pbsdsh")
    return "start with mpirun or mpiexec inside the job; for runs that have nothing to do with "
           "each "
           "other, unset PBS_TASKNUM in each";
  return fmt::format(
      "start with the mpirun of the MPI that trireme is built with (trireme --version names it), "
      "not "
      "with "
      "another MPI's launcher; the processes were started by {}",
      identity.launcher);
}

}  // namespace

Identity identify(const Environment& environment) {
  Identity identity;
  identity.launcher = "none";
  identity.job = job_text(environment);
  if (const auto end = job_end(environment)) identity.deadline_unix = end->unix_time;
  for (const auto& [first, second] : kRivals) require_same(environment, first, second);
  for (const Launcher& launcher : kLaunchers) {
    if (!started_by(launcher, environment)) continue;
    read_ranks(launcher, environment, identity);
    check_exported_open_mpi(environment);
    check_exported_place(environment, identity);
    return identity;
  }
  if (is_pbsdsh_task(environment)) {
    identity.launcher = "pbsdsh";
    identity.source = "PBS_TASKNUM";
    identity.node = number(environment, "PBS_NODENUM");
  }
  return identity;
}

void check_before_mpi(const Identity& identity, const Environment& environment,
                      std::string_view mpi) {
  if (identity.launcher != "Slurm" || !mpi.starts_with("Open MPI")) return;
  for (const char* help : {"PMIX_NAMESPACE", "PMI_FD", "PMI_RANK"}) {
    if (environment.contains(help)) return;
  }
  fail(fmt::format("{} gives this process rank {} of {}, but srun gave it no PMI by which {} could "
                   "find the others (SLURM_MPI_TYPE={})",
                   identity.source, *identity.rank, *identity.size, mpi,
                   lookup(environment, "SLURM_MPI_TYPE").value_or("none")),
       remedy(identity));
}

void check_against_mpi(const Identity& identity, int mpi_rank, int mpi_size) {
  const auto refuse = [&](std::string message) {
    Error error(ErrorKind::kEnvironment, std::move(message), remedy(identity));
    error.rank = identity.rank.value_or(mpi_rank);
    throw error;
  };
  const char* alone = mpi_size == 1 ? ": each process would train alone" : "";
  if (identity.size && *identity.size != mpi_size)
    refuse(fmt::format("{} says {} processes but MPI has {}{}", identity.size_source,
                       *identity.size, mpi_size, alone));
  if (identity.rank && *identity.rank >= mpi_size)
    refuse(fmt::format("{}={} but MPI has {} process{}{}", identity.source, *identity.rank,
                       mpi_size, mpi_size == 1 ? "" : "es", alone));
  if (identity.launcher == "pbsdsh" && mpi_size == 1)
    refuse(fmt::format("{} says that pbsdsh started this process but MPI has 1{}", identity.source,
                       alone));
}

void check_claims(const Identity& identity, const std::vector<Claim>& claims) {
  std::vector<int> owner(claims.size(), -1);
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const int claimed = claims[i].rank;
    if ((claimed < 0) != (claims[0].rank < 0)) {
      fail(fmt::format("the launcher gave MPI rank {} a rank but MPI rank {} none",
                       claimed < 0 ? 0 : i, claimed < 0 ? i : 0),
           kLeftover);
    }
    if (claimed < 0 || static_cast<std::size_t>(claimed) >= claims.size()) continue;
    int& first = owner[static_cast<std::size_t>(claimed)];
    if (first >= 0) {
      fail(fmt::format("{}={} stands in the environment of MPI rank {} and of MPI rank {}",
                       identity.source.empty() ? "the launcher's rank" : identity.source, claimed,
                       first, i),
           kFrozen);
    }
    first = static_cast<int>(i);
  }
}

}  // namespace trireme::cluster
