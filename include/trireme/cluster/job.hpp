// The job around a process: which scheduler's, on which hosts, until when. Pure functions over an
// environment map; files are read and schedulers asked only through what the caller passes in.
#pragma once

#include "trireme/base/environment.hpp"
#include "trireme/cluster/command.hpp"
#include "trireme/cluster/hosts.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::cluster {

struct Job {
  std::string scheduler = {};  // "Slurm", "PBS", "Flux" or "LSF"
  std::string id = {};         // as the scheduler's commands take it
  std::string name = {};       // empty when unknown
  std::string array_id = {};   // of the whole array; empty outside one
  std::optional<int> array_task = {};
  int restarts = 0;  // times that the scheduler started it again, where it tells (Slurm)
  std::vector<HostSlots> hosts = {};
};

// Returns a file's text, or nothing when it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

// Returns the innermost job without its hosts, or nothing outside one.
std::optional<Job> job_named(const Environment& environment);

// Returns the innermost job, or nothing outside one. `hosts` stays empty where the scheduler does
// not tell them (Flux). Throws Environment when a list of hosts makes no sense.
std::optional<Job> job_of(const Environment& environment, const ReadFile& read_file);

struct JobEnd {
  double unix_time = 0;
  std::string source;  // "SLURM_JOB_END_TIME", "squeue", "qstat", "TRIREME_JOB_END_TIME", ...
};

// Returns when the job will be ended, from the environment alone: TRIREME_JOB_END_TIME (a job script
// that knows its limit sets it) or SLURM_JOB_END_TIME. What is no number ("Unknown") is no end.
std::optional<JobEnd> job_end(const Environment& environment);

// Returns the same, and where the environment tells none to come it asks the scheduler once (squeue,
// qstat, flux, bjobs); `now` is the Unix time before asking. Nothing when it has no limit or does
// not answer. One rank asks for all: ten thousand questions at once bring a scheduler down.
std::optional<JobEnd> job_end(const Environment& environment, const Ask& ask, double now);

// Returns the seconds of "2-03:04:05", "03:04:05", "04:05", or "90" (a bare number, whose unit
// depends on the scheduler); nothing for "UNLIMITED" and what else is no time.
std::optional<double> seconds_of(std::string_view clock, double unit_of_bare_number);

}  // namespace trireme::cluster
