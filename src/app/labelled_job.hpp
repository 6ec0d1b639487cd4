// A launcher (mpirun, srun) as a child whose lines are relabelled by rank, with what failed first
// kept for the end.
#pragma once

#include <string>
#include <vector>

namespace trireme::app {

struct JobOutcome {
  int code = 0;             // of the launcher, 128 + n after signal n
  bool signalled = false;   // this process was told to stop, and passed it on
  std::string first_error;  // "rank 1: trireme: error (io): ...", empty when nobody said any
};

// Starts the command, prints what it prints line by line, and waits for it. SIGINT, SIGTERM and
// SIGUSR1 are passed on. Throws Environment when it cannot be started.
JobOutcome run_labelled(const std::vector<std::string>& words);

// Returns the rank and the text of a line that a launcher has tagged ("[1,3]<stderr>:text",
// "[3] text", "3: text") as "rank 3: text"; a line without tag as it is.
std::string relabelled(const std::string& line);

// On standard error, when the job failed.
void print_first_error(const JobOutcome& outcome);

}  // namespace trireme::app
