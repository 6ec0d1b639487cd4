#include "trireme/base/text.hpp"
#include "trireme/obs/report.hpp"

#include "commands.hpp"
#include <fmt/format.h>

#include <filesystem>
#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  std::filesystem::path run;
  bool json = false;
};

}  // namespace

void add_report(Program program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.cli.add_subcommand(
      "report", "write a run's report.html: curves, time split, settings");
  command->add_option("run", arguments->run, "a run's folder, such as runs/demo")->required();
  command->add_flag("--json", arguments->json, "one JSON object on standard output");
  command->callback([program, arguments] {
    program.action = [arguments] {
      const std::string path = obs::write_report(arguments->run).string();
      fmt::print("{}\n",
                 arguments->json ? fmt::format("{{\"report\": {}}}", json_quoted(path)) : path);
      return 0;
    };
  });
}

}  // namespace trireme::app
