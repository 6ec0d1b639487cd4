#include "trireme/ckpt/measure.hpp"

#include "commands.hpp"
#include "run_in_context.hpp"
#include <fmt/format.h>

#include <memory>

namespace trireme::app {

namespace {

struct IoArguments {
  std::string folder = ".";
  std::int64_t bytes = 1'000'000'000;
  int runs = 5;
  bool mpiio = false;
  bool json = false;
};

int measure_io(Context& context, const IoArguments& arguments) {
  ckpt::MeasureOptions options{.folder = arguments.folder,
                               .bytes = Bytes(arguments.bytes),
                               .runs = arguments.runs,
                               .mpiio = arguments.mpiio};
  options.progress = [&](const std::string& line) { context.log().info(line); };
  const ckpt::Measured measured = ckpt::measure_io(context.world(), options);
  if (context.world().is_root()) fmt::print("{}\n", ckpt::to_text(measured, arguments.json));
  return 0;
}

void add_io(Program program, CLI::App& bench) {
  auto arguments = std::make_shared<IoArguments>();
  CLI::App* command = bench.add_subcommand(
      "io", "saves and loads of checkpoints against what the disk takes; alone or under mpirun");
  command->add_option("folder", arguments->folder, "a folder on the disk to measure")
      ->capture_default_str();
  command->add_option("--size", arguments->bytes, "bytes of all ranks together, such as 2GB")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber);
  command->add_flag("--mpiio", arguments->mpiio, "measure checkpoint.driver: mpiio as well");
  command->add_option("--runs", arguments->runs, "how often each is measured, in turn")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", arguments->json, "one JSON object with machine, build and every run");
  command->callback([program, arguments] {
    program.action = [program, arguments] {
      return run_in_context(program.argc, program.argv,
                            [&](Context& context) { return measure_io(context, *arguments); });
    };
  });
}

}  // namespace

void add_bench(Program program) {
  CLI::App* bench =
      program.cli.add_subcommand("bench", "measure, against the bound of this machine");
  bench->require_subcommand(1);
  add_io(program, *bench);
}

}  // namespace trireme::app
