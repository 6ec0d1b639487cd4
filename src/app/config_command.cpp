#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/adapt.hpp"

#include "commands.hpp"
#include "config_sources.hpp"
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  ConfigSources sources;
  std::string prefix;
  std::int64_t num_processes = 0;  // unknown
  std::string convert_file;
  std::string output;
  bool overwrite = false;

  std::optional<std::int64_t> ranks() const {
    return num_processes == 0 ? std::nullopt : std::optional(num_processes);
  }
};

std::string show(const Arguments& arguments) {
  const config::LoadedForeign read = arguments.sources.load(arguments.ranks());
  print_notices(read.adapted.findings);
  return config::to_yaml(read.loaded.config, read.loaded.sources);
}

// Prints or writes; a file that is there is kept unless told otherwise.
int deliver(const std::string& text, const std::string& output, bool overwrite) {
  if (output.empty() || output == "-") {
    fmt::print("{}", text);
    return 0;
  }
  if (std::filesystem::exists(output) && !overwrite) {
    throw Error(ErrorKind::kUsage, fmt::format("{} exists already", output),
                "--overwrite, or another name");
  }
  std::ofstream stream(output, std::ios::binary);
  stream << text;
  if (!stream.flush()) throw_errno("write", output);
  fmt::print("wrote {}\n", output);
  return 0;
}

int convert(Arguments arguments) {
  ConfigSources& sources = arguments.sources;
  switch (config::kind_of_file(arguments.convert_file)) {
    case config::ForeignKind::kAccelerate:
      sources.accelerate = arguments.convert_file;
      break;
    case config::ForeignKind::kDeepSpeed:
      sources.deepspeed = arguments.convert_file;
      break;
    case config::ForeignKind::kTrainingArguments:
      sources.training_arguments = arguments.convert_file;
      break;
  }
  const config::LoadedForeign read = sources.load(arguments.ranks(), true);
  print_notices(read.adapted.findings);
  std::string text =
      fmt::format("# Converted from {}; every value with its source.\n", arguments.convert_file);
  text += config::given_yaml(read.loaded.config, read.loaded.sources);
  return deliver(text, arguments.output, arguments.overwrite);
}

// A small model that trains at once; every other setting keeps its default.
constexpr std::string_view kDefault = R"(# Every setting with its default: trireme config fields
run: {{name: run, dir: runs, seed: 42}}
model: {{type: gpt2, layers: 6, hidden: 384, heads: 6, context: 256}}
data: {{train: {data}, tokenizer: bytes, sequence_length: 256}}
train: {{global_batch_size: 16, micro_batch_size: 4, max_steps: 200, eval_every: 100}}
optimizer: {{type: adamw, lr: 3.0e-4, weight_decay: 0.1, clip_norm: 1.0}}
schedule: {{type: cosine, warmup_steps: 20, min_lr_ratio: 0.1}}
precision: {{compute: {compute}}}
parallel: {{strategy: zero3}}
)";

struct DefaultFile {
  std::string output = "trireme.yaml";
  std::string data;
  std::string mixed_precision = "bf16";
};

int write_default(const DefaultFile& wanted) {
  const std::string text = fmt::format(
      kDefault, fmt::arg("data", wanted.data.empty() ? "[]" : json_quoted(wanted.data)),
      fmt::arg("compute", wanted.mixed_precision == "no" ? "fp32" : wanted.mixed_precision));
  if (!wanted.data.empty()) config::load_text(text, wanted.output);
  const int code = deliver(text, wanted.output, false);
  fmt::print(stderr, "next: trireme launch -n 2 train {}{}\n", wanted.output,
             wanted.data.empty() ? " --set data.train=YOUR_TEXT" : "");
  return code;
}

void add_default(Program program, CLI::App& parent) {
  auto wanted = std::make_shared<DefaultFile>();
  CLI::App* command =
      parent.add_subcommand("default", "write a configuration that trains at once, asking nothing");
  command->add_option("-o,--output,--config_file", wanted->output, "file to write; never replaced")
      ->capture_default_str();
  command->add_option("--data", wanted->data, "the text to train on");
  command
      ->add_option("--mixed_precision,--mixed-precision", wanted->mixed_precision,
                   "no, bf16 or fp16")
      ->check(CLI::IsMember({"no", "bf16", "fp16"}))
      ->capture_default_str();
  command->callback(
      [program, wanted] { program.action = [wanted] { return write_default(*wanted); }; });
}

void add_ranks(CLI::App& command, Arguments& arguments) {
  command
      .add_option("-n,--num-processes,--num_processes", arguments.num_processes,
                  "ranks that the configuration is for; else the foreign file's number")
      ->check(CLI::Range(1, 1'000'000));
}

void add_convert(Program program, CLI::App& parent, std::shared_ptr<Arguments> arguments) {
  CLI::App* command = parent.add_subcommand(
      "convert", "native YAML from a file of Accelerate, DeepSpeed or TrainingArguments");
  command->add_option("file", arguments->convert_file, "the file; its kind is told by its keys")
      ->required();
  command->add_option("--set", arguments->sources.assignments, "one setting that the file lacks")
      ->allow_extra_args(false);
  add_ranks(*command, *arguments);
  command->add_option("-o,--output,--output_file", arguments->output,
                      "file to write; else standard output");
  command->add_flag("--overwrite", arguments->overwrite, "replace the output file");
  command->callback(
      [program, arguments] { program.action = [arguments] { return convert(*arguments); }; });
}

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
  CLI::App* show_command = add_printer(program, *command, "show",
                                       "the resolved settings, each with the source of its value",
                                       [arguments] { return show(*arguments); });
  arguments->sources.add_to(*show_command);
  add_ranks(*show_command, *arguments);
  add_default(program, *command);
  add_convert(program, *command, std::make_shared<Arguments>());
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
