// The subcommands. Each registers its flags and what to run; main runs the one that was named.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace trireme::app {

// Set by the subcommand that was parsed; returns the exit code.
using Action = std::function<int()>;

struct Program {
  int& argc;
  char**& argv;
  CLI::App& cli;
  Action& action;
};

void add_train(Program program);
void add_launch(Program program);
void add_generate(Program program);
void add_eval(Program program);
void add_bench(Program program);
void add_checkpoint(Program program);
void add_config(Program program);
void add_report(Program program);
void add_plan(Program program);
void add_data(Program program);
void add_submit(Program program);
void add_env(Program program);
void add_doctor(Program program);

}  // namespace trireme::app
