// The trireme command. The only place that decides how the process ends.
#include "trireme/base/text.hpp"
#include "trireme/base/version.hpp"

#include "commands.hpp"
#include "report_error.hpp"
#include <fmt/format.h>

#include <cstdio>

namespace trireme::app {

namespace {

// Returns a hint when the first word is nearly a subcommand.
std::string suggestion(const CLI::App& cli, int argc, char** argv) {
  if (argc < 2) return {};
  std::vector<std::string> names;
  for (const CLI::App* command : cli.get_subcommands(nullptr)) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return {};
  const auto near = nearest(argv[1], names);
  return near ? fmt::format("did you mean 'trireme {}'?\n", *near) : std::string();
}

int run(int argc, char** argv) {
  CLI::App cli("Trireme: trains transformers, and any torch::nn::Module, on supercomputers.",
               "trireme");
  cli.set_version_flag("--version",
                       fmt::format("trireme {} ({})", build::kVersion, build::kGitCommit));
  cli.require_subcommand(1);
  Action action;
  const Program program{argc, argv, cli, action};
  add_train(program);
  add_generate(program);
  add_checkpoint(program);
  add_config(program);
  add_report(program);
  try {
    cli.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = cli.exit(error);
    if (code == 0) return 0;  // --help, --version
    fmt::print(stderr, "{}", suggestion(cli, argc, argv));
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
