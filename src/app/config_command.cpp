#include "trireme/config/load.hpp"

#include "commands.hpp"
#include <fmt/format.h>

#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  std::vector<std::string> files;
  std::vector<std::string> assignments;
  std::string prefix;
};

CLI::App* add_printer(Program program, CLI::App& parent, const char* name, const char* help,
                      std::function<std::string()> text) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->callback([program, text = std::move(text)] {
    program.action = [text] {
      fmt::print("{}\n", text());
      return 0;
    };
  });
  return command;
}

}  // namespace

void add_config(Program program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.cli.add_subcommand("config", "show what settings there are and what a run would use");
  command->require_subcommand(1);
  CLI::App* show =
      add_printer(program, *command, "show",
                  "the resolved settings, each with the source of its value", [arguments] {
                    const config::Loaded loaded = config::load(
                        {arguments->files.begin(), arguments->files.end()}, arguments->assignments);
                    return config::to_yaml(loaded.config, loaded.sources);
                  });
  show->add_option("files", arguments->files, "configuration files; later ones win");
  show->add_option("--set", arguments->assignments, "one setting, as in --set optimizer.lr=1e-3")
      ->allow_extra_args(false);
  CLI::App* fields =
      add_printer(program, *command, "fields", "every setting with type, default, range and help",
                  [arguments] { return config::help_text(arguments->prefix); });
  fields->add_option("prefix", arguments->prefix, "only those that start with this, as in 'train'");
  add_printer(program, *command, "schema", "the JSON Schema of the configuration",
              config::json_schema);
  add_printer(program, *command, "reference", "the reference page of every setting, in Markdown",
              config::reference_page);
}

}  // namespace trireme::app
