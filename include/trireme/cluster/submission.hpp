// Job scripts: `trireme submit` writes them from the annotated scripts in slurm/ and pbs/, which are
// part of the program. What is written stands alone: it sources nothing, so that a queued job does
// not change with the checkout.
#pragma once

#include "trireme/cluster/command.hpp"
#include "trireme/cluster/site.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

enum class Scheduler { kSlurm, kPbs };

struct Submission {
  Scheduler scheduler = Scheduler::kSlurm;
  std::optional<Site> site = {};
  int nodes = 1;
  // Nothing: the site's, else one rank on one core, and no GPU.
  std::optional<int> ranks_per_node = {}, cpus_per_rank = {}, gpus_per_node = {};
  std::optional<double> seconds = {};  // the time limit; nothing: the script's own
  std::string name = "trireme";
  std::string account = {};
  std::string partition = {};             // a queue, in PBS
  std::vector<std::string> options = {};  // more lines for the scheduler
  std::vector<std::string> stage = {};    // what each node gets a copy of (TRIREME_STAGE)
  std::string sweep = {};                 // a file of settings, a line for each task of an array
  int num_tasks = 0;                      // how many lines it has
  bool chain = false;                     // a link of a chain
  std::string program = {};               // the trireme binary
  std::filesystem::path script = {};      // where the script will be
  std::vector<std::string> words = {};    // what comes after `trireme train`
  std::vector<std::string> command_line = {};  // what the person typed, for the comment at the top
};

// Returns the script. Throws Config when something cannot be asked for there.
std::string job_script(const Submission& submission);

// Returns the scheduler whose commands `ask` finds; Slurm before PBS, because Slurm brings a qsub of
// its own. Throws Environment when there is none.
Scheduler find_scheduler(const Ask& ask);

// Hands the script over, `links` times in a row, each to start after the one before, and returns the
// jobs' ids. Throws Environment with what the scheduler said.
std::vector<std::string> submit(const Submission& submission, int links, const Ask& ask);

// Returns the seconds of "90m", "2h", "1d", "45s", "01:30:00" or "1-12:00:00". Throws Config for
// anything else, bare numbers among it: Slurm takes them for minutes and PBS for seconds.
double time_limit(std::string_view text);

// Returns a word as a shell reads it back.
std::string shell_quoted(std::string_view word);

// Returns a file that is part of the program, "slurm/trireme.sh" or "share/sites/lumi.site". Throws
// Internal when there is none.
std::string_view shipped_file(std::string_view path);

}  // namespace trireme::cluster
