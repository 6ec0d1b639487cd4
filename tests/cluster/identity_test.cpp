#include "trireme/cluster/identity.hpp"

#include "trireme/base/error.hpp"

#include "environments.hpp"
#include <gtest/gtest.h>

#include <map>

namespace trireme::cluster {
namespace {

std::string refusal(const Environment& environment) {
  try {
    identify(environment);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
    EXPECT_FALSE(error.hint.empty());
    return error.message;
  }
  return "no error";
}

TEST(Identity, agrees_with_mpi_in_every_recorded_environment) {
  int ranks = 0;
  int scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(environments())) {
    if (entry.path().extension() != ".env") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const auto [environment, truth] = read(entry.path());
    const Identity identity = identify(environment);
    if (truth.at("kind") == "script") {
      ++scripts;
      EXPECT_EQ(identity.launcher, "none");
      EXPECT_FALSE(identity.rank.has_value());
      EXPECT_NO_THROW(check_against_mpi(identity, 0, 1));
    }
    if (!truth.contains("rank")) continue;
    ++ranks;
    const int rank = std::stoi(truth.at("rank"));
    const int size = std::stoi(truth.at("size"));
    EXPECT_NO_THROW(check_against_mpi(identity, rank, size));
    if (identity.launcher == "none") {
      EXPECT_EQ(size, 1);  // started by hand
      continue;
    }
    EXPECT_EQ(identity.rank, rank);
    EXPECT_EQ(identity.size, size);
    EXPECT_EQ(identity.local_rank, std::stoi(truth.at("local_rank")));
    EXPECT_EQ(identity.local_size, std::stoi(truth.at("local_size")));
    if (identity.nodes) {
      EXPECT_EQ(identity.nodes, std::stoi(truth.at("nodes")));
    }
  }
  EXPECT_GE(ranks, 70);
  EXPECT_GE(scripts, 12);
}

TEST(Identity, names_the_innermost_launcher) {
  const std::map<std::string, std::string> expected{
      {"mpirun.r1", "Open MPI"},
      {"sbatch-mpirun.r1", "Open MPI"},
      {"salloc-mpirun.r3", "Open MPI"},
      {"openpbs-mpirun.r3", "Open MPI"},
      {"hydra.r1", "Hydra"},
      {"salloc-hydra.r3", "Hydra"},
      {"srun.r3", "Slurm"},
      {"srun-mpi-pmi2.r3", "Slurm"},
      {"srun-mpi-none.r3", "Slurm"},
      {"constructed-pals.r3", "PALS"},
      {"constructed-flux.r3", "Flux"},
      {"constructed-jsrun.r3", "jsrun"},
      {"torchrun.r0", "torch elastic"},
      {"singleton.r0", "none"},
      {"constructed-mvapich2.r3", "MVAPICH2"},
      {"openpbs-pbsdsh.t3", "pbsdsh"},
      {"openpbs.batch", "none"},
      {"openpbs-mpirun.r2", "Open MPI"},
  };
  for (const auto& [name, launcher] : expected)
    EXPECT_EQ(identify(recorded(name)).launcher, launcher) << name;
}

TEST(Identity, names_the_job) {
  EXPECT_EQ(identify(recorded("sbatch.batch")).job, "Slurm 10");
  EXPECT_EQ(identify(recorded("qsub-plugin.batch")).job, "Slurm 1");
  EXPECT_EQ(identify(recorded("openpbs.batch")).job, "PBS 2.server");
  EXPECT_EQ(identify(recorded("constructed-lsf.batch")).job, "LSF 2");
  EXPECT_EQ(identify(recorded("constructed-flux.r3")).job, "Flux f26y8DoiAu");
  EXPECT_EQ(identify(recorded("mpirun.r1")).job, std::nullopt);
}

TEST(Identity, takes_a_batch_script_for_a_process_alone) {
  Environment environment = recorded("sbatch.batch");
  EXPECT_EQ(identify(environment).launcher, "none");
  for (const char* step : {"4294967291", "4294967290"}) {
    environment["SLURM_STEP_ID"] = step;
    EXPECT_EQ(identify(environment).launcher, "none") << step;
  }
}

TEST(Identity, reads_the_end_of_the_job) {
  EXPECT_EQ(identify({{"SLURM_JOB_END_TIME", "1700003600"}}).deadline_unix, 1700003600.0);
  EXPECT_EQ(identify({{"SLURM_JOB_END_TIME", "Unknown"}}).deadline_unix, std::nullopt);
  EXPECT_EQ(identify({}).deadline_unix, std::nullopt);
}

TEST(Identity, knows_nothing_from_an_empty_environment) {
  const Identity identity = identify({});
  EXPECT_EQ(identity.launcher, "none");
  EXPECT_FALSE(identity.rank || identity.size || identity.local_rank || identity.local_size ||
               identity.job);
}

TEST(Identity, counts_the_tasks_of_its_own_node) {
  Environment environment = recorded("srun.r3");
  environment["SLURM_STEP_NUM_TASKS"] = "9";
  environment["SLURM_STEP_NUM_NODES"] = "5";
  environment["SLURM_STEP_TASKS_PER_NODE"] = "2(x3),3";
  environment["SLURM_NODEID"] = "3";
  EXPECT_EQ(identify(environment).local_size, 3);
  environment["SLURM_NODEID"] = "4";
  EXPECT_EQ(refusal(environment),
            "SLURM_STEP_TASKS_PER_NODE='2(x3),3' does not tell the tasks of SLURM_NODEID=4");
  environment["SLURM_STEP_TASKS_PER_NODE"] = "2(x";
  EXPECT_NE(refusal(environment), "no error");
}

TEST(Identity, refuses_a_contradiction_with_both_names) {
  Environment environment = recorded("constructed-jsrun.r3");
  environment["OMPI_COMM_WORLD_RANK"] = "2";
  EXPECT_EQ(refusal(environment),
            "JSM_NAMESPACE_RANK=3 and OMPI_COMM_WORLD_RANK=2 contradict each other");
  environment = recorded("constructed-pals.r3");
  environment["PMI_RANK"] = "0";
  EXPECT_EQ(refusal(environment), "PALS_RANKID=3 and PMI_RANK=0 contradict each other");
  environment = recorded("srun-mpi-pmi2.r3");
  environment["PMI_SIZE"] = "8";
  EXPECT_EQ(refusal(environment), "SLURM_STEP_NUM_TASKS=4 and PMI_SIZE=8 contradict each other");
  environment = recorded("mpirun.r1");
  environment["MV2_COMM_WORLD_RANK"] = "0";
  EXPECT_EQ(refusal(environment),
            "OMPI_COMM_WORLD_RANK=1 and MV2_COMM_WORLD_RANK=0 contradict each other");
}

TEST(Identity, refuses_a_rank_that_the_batch_script_froze) {
  Environment environment = recorded("srun.r3");
  environment["RANK"] = "3";
  environment["WORLD_SIZE"] = "4";
  EXPECT_EQ(refusal(environment), "no error");
  environment["RANK"] = "0";
  EXPECT_EQ(refusal(environment), "RANK=0 and SLURM_PROCID=3 contradict each other");
  environment["RANK"] = "3";
  environment["WORLD_SIZE"] = "1";
  EXPECT_EQ(refusal(environment), "WORLD_SIZE=1 and SLURM_STEP_NUM_TASKS=4 contradict each other");
  // A script that sets them for another launcher, without a rank, is none of our business.
  environment.erase("RANK");
  EXPECT_EQ(refusal(environment), "no error");
  environment["OMPI_COMM_WORLD_RANK"] = "0";
  environment["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_EQ(refusal(environment),
            "OMPI_COMM_WORLD_RANK=0 and SLURM_PROCID=3 contradict each other");
  environment = recorded("mpirun.r1");
  environment["RANK"] = "0";
  EXPECT_EQ(refusal(environment), "RANK=0 and OMPI_COMM_WORLD_RANK=1 contradict each other");
}

TEST(Identity, compares_the_tasks_of_all_nodes_with_those_of_the_step) {
  Environment environment = recorded("srun.r3");
  environment["SLURM_STEP_TASKS_PER_NODE"] = "2,1";
  EXPECT_EQ(refusal(environment),
            "SLURM_STEP_TASKS_PER_NODE='2,1' makes 3 tasks, but the step has 4");
}

TEST(Identity, takes_variables_for_pytorch_for_a_launcher_where_there_is_no_other) {
  const Environment environment{
      {"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "2"}, {"MASTER_ADDR", "n1"}};
  const Identity identity = identify(environment);
  EXPECT_EQ(identity.launcher, "torch variables");
  EXPECT_THROW(check_against_mpi(identity, 0, 1), Error);  // three processes that each are alone
  EXPECT_EQ(identify({{"RANK", "2"}}).launcher, "none");
  Environment under_srun = recorded("srun.r3");
  under_srun.insert({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}});
  EXPECT_EQ(identify(under_srun).launcher, "Slurm");
}

TEST(Identity, knows_the_names_of_older_slurms) {
  Environment environment = recorded("srun.r3");
  for (const char* name :
       {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS"})
    environment.erase(name);
  const Identity identity = identify(environment);
  EXPECT_EQ(identity.launcher, "Slurm");
  EXPECT_EQ(identity.size, 4);
  EXPECT_EQ(identity.size_source, "SLURM_NPROCS");
  EXPECT_EQ(identity.local_size, 2);
  environment["SLURM_TASKS_PER_NODE"] = "4(x2)";  // the job's, of which this step is a part
  EXPECT_EQ(identify(environment).local_size, std::nullopt);
}

TEST(Identity, takes_pmix_alone_for_a_rank_of_unknown_size) {
  const Identity identity = identify({{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "job@1"}});
  EXPECT_EQ(identity.launcher, "PMIx");
  EXPECT_EQ(identity.rank, 2);
  EXPECT_FALSE(identity.size);
  EXPECT_NO_THROW(check_against_mpi(identity, 2, 4));
  EXPECT_THROW(check_against_mpi(identity, 0, 1), Error);
}

TEST(Identity, knows_the_size_of_a_node_under_flux_only_where_all_have_the_same) {
  Environment environment = recorded("constructed-flux.r2");
  EXPECT_EQ(identify(environment).local_size, 2);
  environment["FLUX_TASK_LOCAL_ID"] = "2";  // three ranks on the first node and one on the second
  EXPECT_EQ(identify(environment).local_size, std::nullopt);
}

TEST(Identity, refuses_open_mpi_under_srun_without_pmi) {
  const auto message = [](const std::string& name, const char* mpi) -> std::string {
    const Environment environment = recorded(name);
    try {
      check_before_mpi(identify(environment), environment, mpi);
    } catch (const Error& error) {
      EXPECT_NE(error.hint.find("srun --mpi=pmix"), std::string::npos);
      return error.message;
    }
    return "no error";
  };
  EXPECT_EQ(
      message("srun-mpi-none.r3", "Open MPI 4.1.4"),
      "SLURM_PROCID gives this process rank 3 of 4, but srun gave it no PMI by which Open MPI "
      "4.1.4 could find the others (SLURM_MPI_TYPE=none)");
  EXPECT_EQ(message("srun-mpi-none.r3", "MPICH 4.0.2"), "no error");
  for (const char* name : {"srun.r3", "srun-mpi-pmi2.r3", "salloc-mpirun.r3", "sbatch.batch"})
    EXPECT_EQ(message(name, "Open MPI 4.1.4"), "no error") << name;
}

std::string claim_refusal(const Identity& identity, const std::vector<Claim>& claims) {
  try {
    check_claims(identity, claims);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
    return error.message;
  }
  return "no error";
}

TEST(Claims, must_be_as_many_ranks_as_there_are_processes) {
  const Identity identity = identify(recorded("srun.r3"));
  EXPECT_EQ(claim_refusal(identity, {{0}, {1}, {2}, {3}}), "no error");
  EXPECT_EQ(claim_refusal(identity, {{2}, {3}, {0}, {1}}), "no error");  // MPI may reorder
  EXPECT_EQ(claim_refusal(identity, {{-1}, {-1}}), "no error");
  EXPECT_EQ(claim_refusal(identity, {{0}, {0}, {0}}),
            "SLURM_PROCID=0 stands in the environment of MPI rank 0 and of MPI rank 1");
  EXPECT_EQ(claim_refusal(identity, {{0}, {-1}}),
            "the launcher gave MPI rank 0 a rank but MPI rank 1 none");
}

TEST(Identity, refuses_ranks_that_cannot_be) {
  EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
            "OMPI_COMM_WORLD_RANK=4 is not below OMPI_COMM_WORLD_SIZE=4");
  EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_RANK", "0"}}),
            "OMPI_COMM_WORLD_RANK is set but OMPI_COMM_WORLD_SIZE is not");
  for (const char* text : {"", "-1", "1x", "99999999999", " 1"}) {
    EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_RANK", text}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
              "OMPI_COMM_WORLD_RANK='" + std::string(text) + "' is not a number of 0 or more");
  }
}

TEST(Identity, refuses_processes_that_would_train_alone) {
  const auto message = [](const std::string& name,
                          int mpi_size) -> std::pair<std::string, std::string> {
    try {
      check_against_mpi(identify(recorded(name)), 0, mpi_size);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
      EXPECT_EQ(error.rank, name.ends_with("r3") ? 3 : 0) << name;
      return {error.message, error.hint};
    }
    return {"no error", ""};
  };
  const auto slurm = message("srun-mpi-none.r3", 1);
  EXPECT_EQ(slurm.first,
            "SLURM_STEP_NUM_TASKS says 4 processes but MPI has 1: each process would train alone");
  EXPECT_NE(slurm.second.find("srun --mpi=pmix"), std::string::npos);
  const auto torch = message("torchrun.r0", 1);
  EXPECT_EQ(torch.first,
            "WORLD_SIZE says 4 processes but MPI has 1: each process would train alone");
  EXPECT_NE(torch.second.find("not with torchrun"), std::string::npos);
  const auto pbsdsh = message("openpbs-pbsdsh.t3", 1);
  EXPECT_EQ(pbsdsh.first,
            "PBS_TASKNUM says that pbsdsh started this process but MPI has 1: each process would "
            "train alone");
  EXPECT_NE(pbsdsh.second.find("mpirun or mpiexec"), std::string::npos);
  const auto hydra = message("salloc-hydra.r3", 2);
  EXPECT_EQ(hydra.first, "PMI_SIZE says 4 processes but MPI has 2");
  EXPECT_NE(hydra.second.find("started by Hydra"), std::string::npos);
}

}  // namespace
}  // namespace trireme::cluster
