// Asks another program something, with a deadline: schedulers answer slowly, or never.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::cluster {

struct CommandResult {
  int code = -1;       // its exit code, 128 + n after signal n, 127 when there is no such program
  std::string output;  // standard output and error together, at most 1 MiB
  bool timed_out = false;

  bool good() const { return code == 0 && !timed_out; }
};

// Runs a program found by PATH with no input; when it has not ended after `limit` it is killed,
// with everything that it started.
CommandResult run_command(const std::vector<std::string>& words, std::chrono::milliseconds limit);

// What functions take that ask the scheduler, so that tests can answer in its place.
using Ask = std::function<CommandResult(const std::vector<std::string>& words)>;

// Returns an Ask that gives every program this long.
Ask ask_within(std::chrono::milliseconds limit);

}  // namespace trireme::cluster
