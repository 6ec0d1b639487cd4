#include "trireme/cluster/job.hpp"

#include "trireme/base/error.hpp"

#include "environments.hpp"
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

namespace trireme::cluster {
namespace {

using Hosts = std::vector<HostSlots>;
const Hosts kTwoByTwo{{"n1", 2}, {"n2", 2}};

std::optional<std::string> no_file(const std::string&) { return std::nullopt; }

// A node file where the recorded job had it.
ReadFile node_file_of(const std::string& name) {
  return [name](const std::string&) { return std::optional(recorded_file(name)); };
}

Job job(const std::string& name, const ReadFile& read_file = no_file) {
  const auto found = job_of(recorded(name), read_file);
  EXPECT_TRUE(found.has_value()) << name;
  return found.value_or(Job{});
}

TEST(Job, is_read_from_slurm) {
  const Job batch = job("sbatch.batch");
  EXPECT_EQ(batch.scheduler, "Slurm");
  EXPECT_EQ(batch.id, "10");
  EXPECT_EQ(batch.hosts, kTwoByTwo);
  EXPECT_EQ(batch.array_task, std::nullopt);
  EXPECT_EQ(batch.restarts, 0);
  EXPECT_EQ(job("requeued-1.batch").restarts, 1);
  EXPECT_EQ(job("array-3.batch").array_id, "13");
  EXPECT_EQ(job("array-3.batch").array_task, 3);
  EXPECT_EQ(job("srun-uneven.r2").hosts, (Hosts{{"n1", 2}, {"n2", 1}}));
  EXPECT_EQ(job("qsub-plugin.batch").scheduler, "Slurm");
  // A step on one of two nodes: its own counts say nothing about the job's.
  EXPECT_EQ(job("sbatch-mpirun.r3").hosts, kTwoByTwo);
}

TEST(Job, is_read_from_pbs_and_its_node_file) {
  const Job batch = job("openpbs.batch", node_file_of("openpbs.nodefile"));
  EXPECT_EQ(batch.scheduler, "PBS");
  EXPECT_EQ(batch.id, "2.server");
  EXPECT_EQ(batch.hosts, kTwoByTwo);
  EXPECT_EQ(job("openpbs.batch", node_file_of("openpbs-uneven.nodefile")).hosts,
            (Hosts{{"n1", 2}, {"n2", 1}}));
  EXPECT_EQ(job("openpbs.batch", node_file_of("openpbs-chunks.nodefile")).hosts,
            (Hosts{{"n1", 1}, {"n2", 1}}));
  EXPECT_EQ(job("openpbs.batch").hosts, Hosts{});
  EXPECT_EQ(job("openpbs-array-3.batch").array_task, 3);
}

TEST(Job, is_read_from_lsf_without_the_node_of_the_script) {
  EXPECT_EQ(job("constructed-lsf.batch").id, "2");
  EXPECT_EQ(job("constructed-lsf.batch").hosts, kTwoByTwo);
  EXPECT_EQ(job("constructed-jsrun.r3").hosts, kTwoByTwo);
  Environment plain{{"LSB_JOBID", "7"}, {"LSB_MCPU_HOSTS", "n1 1 n2 2"}};
  EXPECT_EQ(job_of(plain, no_file)->hosts, (Hosts{{"n1", 1}, {"n2", 2}}));
}

TEST(Job, is_none_outside_one) {
  EXPECT_FALSE(job_of(recorded("mpirun.r1"), no_file));
  EXPECT_FALSE(job_of({}, no_file));
  EXPECT_EQ(job("constructed-flux.r3").scheduler, "Flux");
}

TEST(Job, has_as_many_hosts_and_slots_as_every_record_says) {
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(environments())) {
    if (entry.path().extension() != ".env") continue;
    const auto [environment, truth] = read(entry.path());
    const auto found = job_of(environment, node_file_of("openpbs.nodefile"));
    if (!truth.contains("nodes") || !truth.contains("slots") || !found) continue;
    const bool one = truth.at("nodes") == "1";  // its node file was not recorded
    if (one) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++compared;
    EXPECT_EQ(found->hosts.size(), std::stoul(truth.at("nodes")));
    EXPECT_EQ(total_slots(found->hosts), std::stoi(truth.at("slots")));
  }
  EXPECT_GE(compared, 5);
}

TEST(Job, refuses_a_host_list_that_makes_no_sense) {
  Environment environment = recorded("sbatch.batch");
  environment["SLURM_JOB_NODELIST"] = "n[1-";
  EXPECT_THROW(job_of(environment, no_file), Error);
}

TEST(Clock, is_read_as_schedulers_write_it) {
  EXPECT_EQ(seconds_of("2-03:04:05", 60), 2 * 86400 + 3 * 3600 + 4 * 60 + 5);
  EXPECT_EQ(seconds_of("1-12", 60), 86400 + 12 * 3600);
  EXPECT_EQ(seconds_of("1-12:30", 60), 86400 + 12 * 3600 + 30 * 60);
  EXPECT_EQ(seconds_of("03:04:05", 60), 3 * 3600 + 4 * 60 + 5);
  EXPECT_EQ(seconds_of("4:05", 60), 4 * 60 + 5);
  EXPECT_EQ(seconds_of("90", 60), 5400);
  EXPECT_EQ(seconds_of("90", 1), 90);
  for (const char* text : {"", "UNLIMITED", "INVALID", "1:2:3:4", "-1", "1:", ":1", "1-"})
    EXPECT_EQ(seconds_of(text, 60), std::nullopt) << text;
}

// Answers as a scheduler would and counts the questions.
struct Scheduler {
  std::string program;
  std::string answer;
  int code = 0;
  int questions = 0;

  Ask ask() {
    return [this](const std::vector<std::string>& words) {
      ++questions;
      EXPECT_EQ(words.at(0), program);
      return CommandResult{code, answer, false};
    };
  }
};

TEST(JobEnd, comes_from_the_environment_without_a_question) {
  Scheduler none{"nobody", ""};
  EXPECT_EQ(job_end({{"SLURM_JOB_END_TIME", "1700003600"}})->unix_time, 1700003600.0);
  EXPECT_EQ(job_end({{"SLURM_JOB_END_TIME", "Unknown"}}), std::nullopt);
  Environment environment = recorded("sbatch.batch");
  environment["SLURM_JOB_END_TIME"] = "1700003600";
  environment["TRIREME_JOB_END_TIME"] = "1700003000";
  const auto end = job_end(environment, none.ask(), 1700000000);
  EXPECT_EQ(end->unix_time, 1700003000.0);
  EXPECT_EQ(end->source, "TRIREME_JOB_END_TIME");
  EXPECT_FALSE(job_end(recorded("mpirun.r1"), none.ask(), 0));
  EXPECT_EQ(none.questions, 0);
  // An earlier job's, which sbatch passed on.
  Scheduler squeue{"squeue", "10:00"};
  EXPECT_EQ(job_end(environment, squeue.ask(), 1800000000)->unix_time, 1800000600.0);
}

TEST(JobEnd, is_asked_of_slurm_once) {
  Scheduler squeue{"squeue", "  1:02:03\n"};
  const auto end = job_end(recorded("sbatch.batch"), squeue.ask(), 1000);
  EXPECT_EQ(end->unix_time, 1000 + 3723);
  EXPECT_EQ(end->source, "squeue");
  EXPECT_EQ(squeue.questions, 1);
  squeue.answer = "UNLIMITED\n";
  EXPECT_FALSE(job_end(recorded("sbatch.batch"), squeue.ask(), 1000));
  squeue.answer = "1:02:03\n";
  squeue.code = 1;
  EXPECT_FALSE(job_end(recorded("sbatch.batch"), squeue.ask(), 1000));
}

TEST(JobEnd, is_asked_of_pbs) {
  Scheduler qstat{"qstat",
                  "Job Id: 2.server\n    Job_Name = x\n    resources_used.walltime = 00:10:00\n"
                  "    Resource_List.walltime = 01:00:00\n"};
  EXPECT_EQ(job_end(recorded("openpbs.batch"), qstat.ask(), 1000)->unix_time, 1000 + 3000);
  qstat.answer += "    stime = Tue Dec  1 06:15:12 2026\n";
  std::tm start{};
  start.tm_year = 126;
  start.tm_mon = 11;
  start.tm_mday = 1;
  start.tm_hour = 6;
  start.tm_min = 15;
  start.tm_sec = 12;
  start.tm_isdst = -1;
  EXPECT_EQ(job_end(recorded("openpbs.batch"), qstat.ask(), 1000)->unix_time,
            static_cast<double>(std::mktime(&start)) + 3600);
  qstat.answer = "Job Id: 2\n    Walltime.Remaining = 120\n";
  EXPECT_EQ(job_end(recorded("openpbs.batch"), qstat.ask(), 1000)->unix_time, 1120);
  qstat.answer = "Job Id: 2.server\n    Job_Name = no_limit\n";
  EXPECT_FALSE(job_end(recorded("openpbs.batch"), qstat.ask(), 1000));
}

TEST(JobEnd, is_asked_of_flux_and_lsf) {
  Scheduler flux{"flux", "3599\n"};
  EXPECT_EQ(job_end(recorded("constructed-flux.r3"), flux.ask(), 1000)->unix_time, 4599);
  flux.answer = "infinity\n";
  EXPECT_FALSE(job_end(recorded("constructed-flux.r3"), flux.ask(), 1000));
  Scheduler bjobs{"bjobs", "1:30 L\n"};
  EXPECT_EQ(job_end(recorded("constructed-lsf.batch"), bjobs.ask(), 1000)->unix_time, 6400);
  bjobs.answer = "-\n";
  EXPECT_FALSE(job_end(recorded("constructed-lsf.batch"), bjobs.ask(), 1000));
}

}  // namespace
}  // namespace trireme::cluster
