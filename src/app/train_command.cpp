#include "trireme/train/trainer.hpp"

#include "commands.hpp"
#include "config_sources.hpp"
#include "run_in_context.hpp"
#include <fmt/format.h>

#include <cstdio>
#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  ConfigSources sources;
  std::string resume = "none";
  bool dry_run = false;
};

int run(Context& context, const Arguments& arguments) {
  config::LoadedForeign read;
  context.world().agree("read the configuration", [&] {
    read = arguments.sources.load(context.world().size());
    config::require_valid(read.loaded.config, read.loaded.sources);
  });
  const config::Loaded& loaded = read.loaded;
  if (context.world().is_root()) print_notices(read.adapted.findings);
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
  arguments->sources.add_to(*command);
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
    if (arguments->sources.empty())
      throw CLI::RequiredError(
          "a configuration file, --accelerate, --deepspeed or "
          "--training-arguments");
    program.action = [program, arguments] {
      return run_in_context(program.argc, program.argv,
                            [&](Context& context) { return run(context, *arguments); });
    };
  });
}

}  // namespace trireme::app
