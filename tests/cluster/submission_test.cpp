#include "trireme/cluster/submission.hpp"

#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace trireme::cluster {
namespace {

std::string file(const std::filesystem::path& path) {
  std::ifstream stream(std::filesystem::path(TRIREME_TEST_DATA).parent_path() / path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

Submission two_nodes(Scheduler scheduler) {
  Submission job;
  job.scheduler = scheduler;
  job.nodes = 2;
  job.ranks_per_node = 4;
  job.cpus_per_rank = 2;
  job.seconds = 5400;
  job.name = "mine";
  job.program = "/opt/trireme";
  job.script = "/scratch/mine.job";
  job.words = {"my.yaml", "--set", "run.name=it's"};
  job.command_line = {"trireme", "submit"};
  return job;
}

bool has_line(const std::string& script, const std::string& line) {
  return ("\n" + script).find("\n" + line + "\n") != std::string::npos;
}

std::string refusal(const Submission& job) {
  try {
    job_script(job);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message + " | " + error.hint;
  }
  return "no error";
}

TEST(Shipped, files_are_those_of_the_checkout) {
  for (const char* path : {"slurm/trireme.sh", "pbs/trireme.sh", "share/job/job.sh",
                           "slurm/chained.sbatch", "share/sites/lumi.site"}) {
    EXPECT_FALSE(file(path).empty()) << path;
    EXPECT_EQ(shipped_file(path), file(path)) << path;
  }
  EXPECT_THROW(shipped_file("slurm/none"), Error);
}

TEST(Sites, are_the_eleven_and_every_one_can_be_read) {
  EXPECT_EQ(site_names().size(), 11U);
  for (const std::string& name : site_names()) {
    const Site site = find_site(name);
    EXPECT_FALSE(site.title.empty()) << name;
    EXPECT_FALSE(site.scheduler.empty()) << name;
    EXPECT_TRUE(site.ranks_per_node.has_value()) << name;
  }
}

TEST(Sites, refuse_what_no_profile_can_have) {
  const auto message = [](const char* text) -> std::string {
    try {
      parse_site("x", text, "x.site");
    } catch (const Error& error) {
      return error.message;
    }
    return "no error";
  };
  EXPECT_EQ(message("# fine\n\n  title   A b\nset NAME a b c\nset-multi-node N x\n"), "no error");
  EXPECT_EQ(message("title\n"), "x.site:1: title needs a value");
  EXPECT_EQ(message("\nlaunchr srun\n"),
            "x.site:2: unknown key 'launchr'; did you mean 'launcher'?");
  EXPECT_EQ(message("ranks-per-node four\n"),
            "x.site:1: ranks-per-node 'four' is not a number of 1 or more");
  EXPECT_EQ(message("set ONLY\n"),
            "x.site:1: set takes the name of a variable and its value, not 'ONLY'");
  EXPECT_EQ(message("set A-B c\n"),
            "x.site:1: set takes the name of a variable and its value, not 'A-B c'");
  EXPECT_EQ(message("bind-gpus X sideways 4\n"),
            "x.site:1: bind-gpus takes VARIABLE forward|reverse N");
  EXPECT_EQ(message("scheduler cron\n"), "x.site:1: scheduler 'cron' is none of slurm, pbs, flux");
  try {
    find_site("perlmuter");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.hint, "did you mean 'perlmutter'?");
  }
}

TEST(JobScript, asks_slurm_for_what_was_said) {
  const std::string script = job_script(two_nodes(Scheduler::kSlurm));
  for (const char* line :
       {"#SBATCH --job-name=mine", "#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=2", "#SBATCH --time=01:30:00", "#SBATCH --signal=B:USR1@180",
        "set -- my.yaml --set 'run.name=it'\\''s'", "trireme_job train \"$@\""})
    EXPECT_TRUE(has_line(script, line)) << line;
  EXPECT_TRUE(script.starts_with("#!/bin/bash\n"));
  EXPECT_EQ(script.find("--gpus-per-node"), std::string::npos);
  // It stands alone.
  EXPECT_EQ(script.find("\n. \""), std::string::npos);
  EXPECT_NE(script.find("\ntrireme_watch() {"), std::string::npos);
}

TEST(JobScript, asks_pbs_for_what_was_said) {
  Submission job = two_nodes(Scheduler::kPbs);
  job.gpus_per_node = 4;
  job.partition = "prod";
  const std::string script = job_script(job);
  for (const char* line :
       {"#PBS -N mine", "#PBS -l select=2:ncpus=8:mpiprocs=4:ngpus=4", "#PBS -l walltime=01:30:00",
        "#PBS -q prod", "export TRIREME_WALLTIME=5400", "export TRIREME_SCRIPT=/scratch/mine.job",
        "words=(my.yaml --set 'run.name=it'\\''s')"})
    EXPECT_TRUE(has_line(script, line)) << line;
}

TEST(JobScript, is_made_from_the_script_of_its_shape) {
  Submission job = two_nodes(Scheduler::kSlurm);
  const auto origin = [&] {
    const std::string script = job_script(job);
    const auto at = script.find("# Written from ") + 15;
    return script.substr(at, script.find(' ', at) - at);
  };
  EXPECT_EQ(origin(), "slurm/multi-node-cpu");
  job.gpus_per_node = 4;
  EXPECT_EQ(origin(), "slurm/multi-node-gpu");
  job.chain = true;
  EXPECT_EQ(origin(), "slurm/chained");
  job.chain = false;
  job.nodes = 1;
  EXPECT_EQ(origin(), "slurm/single-node");
  job.sweep = "sweep.txt";
  job.num_tasks = 7;
  EXPECT_EQ(origin(), "slurm/array-sweep");
  EXPECT_TRUE(has_line(job_script(job), "#SBATCH --array=1-7"));
  EXPECT_TRUE(has_line(job_script(job), "set -- sweep.txt my.yaml --set 'run.name=it'\\''s'"));
}

TEST(JobScript, takes_the_sites_numbers_unless_told_otherwise) {
  Submission job = two_nodes(Scheduler::kSlurm);
  job.site = find_site("perlmutter");
  job.account = "m1_g";
  job.ranks_per_node = {};
  std::string script = job_script(job);
  for (const char* line :
       {"#SBATCH --ntasks-per-node=4", "#SBATCH --cpus-per-task=2", "#SBATCH --gpus-per-node=4",
        "#SBATCH --constraint=gpu", "#SBATCH --account=m1_g", "set NCCL_SOCKET_IFNAME hsn"})
    EXPECT_TRUE(has_line(script, line)) << line;
  job.options = {"--constraint=gpu&hbm80g"};
  script = job_script(job);
  EXPECT_TRUE(has_line(script, "#SBATCH --constraint=gpu&hbm80g"));
  EXPECT_FALSE(has_line(script, "#SBATCH --constraint=gpu"));
}

TEST(JobScript, says_what_the_site_needs) {
  Submission job = two_nodes(Scheduler::kSlurm);
  job.site = find_site("perlmutter");
  EXPECT_EQ(refusal(job),
            "every job of NERSC Perlmutter (GPU) needs --account | say --account PROJECT");
  job.site = find_site("polaris");
  job.scheduler = Scheduler::kPbs;
  job.account = "project";
  EXPECT_EQ(refusal(job),
            "every job of ALCF Polaris needs -l filesystems | say --option '-l filesystems=...'");
  job.options = {"-l filesystems=home:eagle"};
  EXPECT_EQ(refusal(job), "no error");
}

TEST(TimeLimit, is_read_with_its_unit) {
  EXPECT_EQ(time_limit("90m"), 5400);
  EXPECT_EQ(time_limit("2h"), 7200);
  EXPECT_EQ(time_limit("45s"), 45);
  EXPECT_EQ(time_limit("1d"), 86400);
  EXPECT_EQ(time_limit("01:30:00"), 5400);
  EXPECT_EQ(time_limit("1-12:00:00"), 129600);
  for (const char* text : {"", "60", "m", "1h30m", "0s", "-1h", "400d", "1:2:3h"})
    EXPECT_THROW(time_limit(text), Error) << text;
}

TEST(Submit, links_each_job_to_the_one_before) {
  std::vector<std::string> asked;
  int number = 10;
  const Ask ask = [&](const std::vector<std::string>& words) {
    std::string line;
    for (const std::string& word : words) line += word + " ";
    asked.push_back(line);
    return CommandResult{0, std::to_string(number++) + ";cluster\n", false};
  };
  EXPECT_EQ(submit(two_nodes(Scheduler::kSlurm), 3, ask),
            (std::vector<std::string>{"10", "11", "12"}));
  EXPECT_EQ(asked, (std::vector<std::string>{
                       "sbatch --parsable /scratch/mine.job ",
                       "sbatch --parsable --dependency=afterany:10 /scratch/mine.job ",
                       "sbatch --parsable --dependency=afterany:11 /scratch/mine.job "}));
  asked.clear();
  submit(two_nodes(Scheduler::kPbs), 2, ask);
  EXPECT_EQ(asked.at(1), "qsub -W depend=afterany:13 /scratch/mine.job ");
}

TEST(Submit, passes_on_what_the_scheduler_refused) {
  const Ask ask = [](const std::vector<std::string>&) {
    return CommandResult{1, "sbatch: error: invalid account\n", false};
  };
  try {
    submit(two_nodes(Scheduler::kSlurm), 1, ask);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
    EXPECT_NE(error.cause.find("invalid account"), std::string::npos);
  }
}

TEST(Submit, finds_slurm_before_pbs) {
  const auto with = [](const std::string& there) {
    return [there](const std::vector<std::string>& words) {
      return CommandResult{there.find(words[0]) == std::string::npos ? 127 : 0, "", false};
    };
  };
  EXPECT_EQ(find_scheduler(with("sbatch qsub")), Scheduler::kSlurm);
  EXPECT_EQ(find_scheduler(with("qsub")), Scheduler::kPbs);
  EXPECT_THROW(find_scheduler(with("")), Error);
}

}  // namespace
}  // namespace trireme::cluster
