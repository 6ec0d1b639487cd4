// Where a command's configuration comes from: native files, --set, and files of Accelerate,
// DeepSpeed and TrainingArguments. The same flags and notices for every command that takes one.
#pragma once

#include "trireme/config/adapt.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::app {

struct ConfigSources {
  std::vector<std::string> files;
  std::vector<std::string> assignments;
  std::string accelerate;
  std::string deepspeed;
  std::string training_arguments;

  void add_to(CLI::App& command);
  bool empty() const { return files.empty() && foreign().empty(); }
  std::vector<config::ForeignFile> foreign() const;

  // Throws one Config error with everything that is wrong. `num_ranks`: of the job, where there is
  // one. With `partial` there need be no data.
  config::LoadedForeign load(std::optional<std::int64_t> num_ranks, bool partial = false) const;
};

// Prints what was taken with reservations, and what has no effect and why, on standard error.
void print_notices(const std::vector<config::ForeignFinding>& findings);

}  // namespace trireme::app
