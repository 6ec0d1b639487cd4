#include "trireme/base/text.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/tools.hpp"

#include "commands.hpp"
#include <fmt/format.h>

#include <filesystem>
#include <memory>

namespace trireme::app {

namespace {

namespace fs = std::filesystem;

struct Arguments {
  fs::path first;
  fs::path second;
  bool json = false;
};

int inspect(const Arguments& arguments) {
  fmt::print("{}\n", ckpt::describe(ckpt::resolve(arguments.first), arguments.json));
  return 0;
}

int hash(const Arguments& arguments) {
  const fs::path path = ckpt::resolve(arguments.first);
  const std::string digest = ckpt::content_hash(path);
  if (arguments.json) {
    fmt::print("{{\"checkpoint\": {}, \"hash\": {}}}\n", json_quoted(path.string()),
               json_quoted(digest));
  } else {
    fmt::print("{}  {}\n", digest, path.string());
  }
  return 0;
}

int verify(const Arguments& arguments) {
  const fs::path path = ckpt::resolve(arguments.first);
  ckpt::Reader(path).verify();
  fmt::print("{}", arguments.json ? fmt::format("{{\"checkpoint\": {}, \"good\": true}}\n",
                                                json_quoted(path.string()))
                                  : fmt::format("good: {}\n", path.string()));
  return 0;
}

int diff(const Arguments& arguments) {
  const fs::path a = ckpt::resolve(arguments.first);
  const fs::path b = ckpt::resolve(arguments.second);
  const auto differences = ckpt::compare(a, b);
  if (arguments.json) {
    std::string list;
    for (const ckpt::Difference& difference : differences) {
      if (!list.empty()) list += ", ";
      list += fmt::format("{{\"path\": {}, \"what\": {}}}", json_quoted(difference.path),
                          json_quoted(difference.what));
    }
    fmt::print("{{\"equal\": {}, \"differences\": [{}]}}\n", differences.empty(), list);
  } else if (differences.empty()) {
    fmt::print("equal: {} and {}\n", a.string(), b.string());
  } else {
    for (const ckpt::Difference& difference : differences)
      fmt::print("{}: {}\n", difference.path, difference.what);
  }
  return differences.empty() ? 0 : 1;
}

using Command = int (*)(const Arguments&);

void add_command(Program program, CLI::App& parent, const char* name, const char* help, Command run,
                 bool takes_two) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = parent.add_subcommand(name, help);
  const char* what = "a checkpoint, or a run's folder (its newest checkpoint)";
  command->add_option("checkpoint", arguments->first, what)->required();
  if (takes_two) command->add_option("other", arguments->second, what)->required();
  command->add_flag("--json", arguments->json, "one JSON object on standard output");
  command->callback(
      [program, arguments, run] { program.action = [arguments, run] { return run(*arguments); }; });
}

}  // namespace

void add_checkpoint(Program program) {
  CLI::App* command =
      program.cli.add_subcommand("ckpt", "look into checkpoints, check and compare them");
  command->require_subcommand(1);
  add_command(program, *command, "inspect", "what a checkpoint holds", inspect, false);
  add_command(program, *command, "verify", "read every byte and check it", verify, false);
  add_command(program, *command, "hash",
              "a digest of the logical content: equal content, equal digest", hash, false);
  add_command(program, *command, "diff",
              "what differs in content; exit code 0 only when equal to the bit", diff, true);
}

}  // namespace trireme::app
