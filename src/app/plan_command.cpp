#include "trireme/kernels/runtime.hpp"
#include "trireme/train/plan.hpp"

#include "commands.hpp"
#include "config_sources.hpp"
#include <fmt/format.h>

#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  ConfigSources sources;
  int ranks = 1;
  int ranks_per_node = 0;
  bool json = false;
};

int run(const Arguments& arguments) {
  const config::LoadedForeign read = arguments.sources.load(arguments.ranks);
  const config::Loaded& loaded = read.loaded;
  print_notices(read.adapted.findings);
  config::require_valid(loaded.config, loaded.sources);
  const parallel::Machine machine{
      arguments.ranks, arguments.ranks_per_node == 0 ? arguments.ranks : arguments.ranks_per_node};
  const kernels::Runtime kernels;
  const train::TrainPlan plan = train::plan(loaded.config, machine);
  fmt::print("{}\n", arguments.json ? train::to_json(plan, loaded.config, machine)
                                    : train::describe(plan, loaded.config, machine));
  return 0;
}

}  // namespace

void add_plan(Program program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.cli.add_subcommand(
      "plan", "memory of a rank, bytes sent and checkpoint size of a run; starts nothing");
  command->alias("estimate-memory");
  arguments->sources.add_to(*command);
  command->add_option("--ranks,-n", arguments->ranks, "ranks of the job")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--ranks-per-node", arguments->ranks_per_node,
                   "how many of them share a node; 0: all")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "one JSON object on standard output");
  command->callback([program, arguments] {
    if (arguments->sources.empty()) throw CLI::RequiredError("a configuration file");
    program.action = [arguments] { return run(*arguments); };
  });
}

}  // namespace trireme::app
