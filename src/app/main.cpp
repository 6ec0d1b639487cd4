// The trireme command. The only place that decides how the process ends.
#include "trireme/base/text.hpp"
#include "trireme/base/version.hpp"

#include "commands.hpp"
#include "report_error.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace trireme::app {

namespace {

// Returns what to say when a word is nearly the subcommand that it stands in place of; empty when
// that is not what is wrong.
std::string unknown_command(const CLI::App& cli, int argc, char** argv) {
  const CLI::App* parent = &cli;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::string> names;
    for (const CLI::App* command : parent->get_subcommands(nullptr))
      names.push_back(command->get_name());
    const std::string word = argv[i];
    if (names.empty() || word.starts_with('-')) return {};
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      const auto near = nearest(word, names);
      return fmt::format("trireme: there is no command '{}'; {}\n", word,
                         near ? fmt::format("did you mean '{}'?", *near)
                              : fmt::format("the commands are {}", fmt::join(names, ", ")));
    }
    parent = parent->get_subcommand(word);
  }
  return {};
}

int run(int argc, char** argv) {
  CLI::App cli("Trireme: trains transformers, and any torch::nn::Module, on supercomputers.",
               "trireme");
  cli.set_version_flag(
      "--version",
      fmt::format("trireme {} ({}) with {}, LibTorch {}, HDF5 {}, Kokkos {}", build::kVersion,
                  build::kGitCommit, build::kMpi, build::kLibTorch, build::kHdf5, build::kKokkos));
  cli.require_subcommand(1);
  Action action;
  const Program program{argc, argv, cli, action};
  add_train(program);
  add_launch(program);
  add_generate(program);
  add_eval(program);
  add_checkpoint(program);
  add_bench(program);
  add_config(program);
  add_report(program);
  add_plan(program);
  add_data(program);
  add_submit(program);
  add_env(program);
  add_doctor(program);
  try {
    cli.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::string unknown = unknown_command(cli, argc, argv);
    if (!unknown.empty()) {
      fmt::print(stderr, "{}", unknown);
      return exit_code(ErrorKind::kUsage);
    }
    if (cli.exit(error) == 0) return 0;  // --help, --version
    return exit_code(ErrorKind::kUsage);
  }
  try {
    return action();
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    print_error(error);
    return exit_code(error.kind);
  }
}

}  // namespace

}  // namespace trireme::app

int main(int argc, char** argv) { return trireme::app::run(argc, argv); }
