#include "trireme/train/trainer.hpp"

#include "commands.hpp"
#include "run_in_context.hpp"
#include <fmt/format.h>

#include <cstdio>
#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  std::vector<std::string> files;
  std::vector<std::string> assignments;
  std::string resume = "none";
  bool dry_run = false;
};

int run(Context& context, const Arguments& arguments) {
  config::Loaded loaded;
  context.world().agree("read the configuration", [&] {
    loaded = config::load({arguments.files.begin(), arguments.files.end()}, arguments.assignments);
    config::require_valid(loaded.config, loaded.sources);
  });
  const train::TrainResult result =
      train::train(context, loaded, {train::Resume::parse(arguments.resume), arguments.dry_run});
  if (arguments.dry_run || !context.world().is_root()) return result.preempted ? kExitPreempted : 0;
  const std::string loss = result.loss ? fmt::format(" loss={:.4f}", *result.loss) : "";
  fmt::print("done step={}{} tokens={} seconds={:.1f} checkpoint={}\n", result.step, loss,
             result.tokens, result.seconds, result.checkpoint.string());
  std::fflush(stdout);
  return result.preempted ? kExitPreempted : 0;
}

}  // namespace

void add_train(Program program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.cli.add_subcommand("train", "train a model as YAML files say, alone or under mpirun");
  command->add_option("files", arguments->files, "configuration files; later ones win")->required();
  command
      ->add_option("--set", arguments->assignments,
                   "one setting, as in --set optimizer.lr=1e-3; wins over files")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", arguments->resume,
                   "none: refuse a folder that holds a run; auto: continue if there is something "
                   "to continue; or "
                   "a checkpoint")
      ->capture_default_str();
  command->add_flag("--dry-run", arguments->dry_run,
                    "check everything and print the plan, train nothing");
  command->footer("Settings, with default and help: trireme config fields");
  command->callback([program, arguments] {
    program.action = [program, arguments] {
      return run_in_context(program.argc, program.argv,
                            [&](Context& context) { return run(context, *arguments); });
    };
  });
}

}  // namespace trireme::app
