#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/hugging_face.hpp"
#include "trireme/ckpt/tools.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/train/run_folder.hpp"

#include "commands.hpp"
#include "progress.hpp"
#include "run_in_context.hpp"
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::app {

namespace {

namespace fs = std::filesystem;

struct Arguments {
  fs::path path;
  fs::path other;              // diff
  std::vector<fs::path> more;  // hash
  std::vector<fs::path> copies;
  fs::path to;
  std::string dtype = "f32";
  std::int64_t shard_size = 5'000'000'000;
  ckpt::KeepRules rules{3, 0, {}, true};
  std::vector<std::int64_t> steps;
  bool drop_damaged = false;
  bool dry_run = false;
  bool json = false;
};

int inspect(const Arguments& arguments) {
  fmt::print("{}\n", ckpt::describe(ckpt::resolve(arguments.path), arguments.json));
  return 0;
}

int hash(const Arguments& arguments) {
  std::string list;
  std::vector<fs::path> paths{arguments.path};
  paths.insert(paths.end(), arguments.more.begin(), arguments.more.end());
  for (const fs::path& given : paths) {
    const fs::path path = ckpt::resolve(given);
    ProgressLine progress("hash");
    const std::string digest = ckpt::content_hash(path, std::ref(progress));
    list += arguments.json
                ? fmt::format("{}{{\"checkpoint\": {}, \"hash\": {}}}", list.empty() ? "" : ", ",
                              json_quoted(path.string()), json_quoted(digest))
                : fmt::format("{}  {}\n", digest, path.string());
  }
  // One path gives one object, as scripts have it; several give a list.
  if (arguments.json && paths.size() > 1) list = fmt::format("{{\"hashes\": [{}]}}", list);
  fmt::print("{}{}", list, arguments.json ? "\n" : "");
  return 0;
}

int verify(const Arguments& arguments) {
  const fs::path path = ckpt::resolve(arguments.path);
  ProgressLine progress("verify");
  const ckpt::Examination found = ckpt::examine(path, arguments.copies, std::ref(progress));
  fmt::print("{}\n", ckpt::to_text(found, arguments.json));
  std::fflush(stdout);
  if (found.good()) return 0;
  const std::size_t more = found.damages.size() - 1;
  throw Error(ErrorKind::kCorrupt,
              found.damages[0].what + (more > 0 ? fmt::format(" (and {} more)", more) : ""),
              found.good_copies.empty() ? "" : "right in " + found.good_copies[0].string());
}

int diff(const Arguments& arguments) {
  const fs::path a = ckpt::resolve(arguments.path);
  const fs::path b = ckpt::resolve(arguments.other);
  ProgressLine progress("diff");
  const auto differences = ckpt::compare(a, b, std::ref(progress));
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

int export_weights(const Arguments& arguments) {
  const std::map<std::string, ckpt::safetensors::Type> types{
      {"f32", ckpt::safetensors::Type::kF32},
      {"bf16", ckpt::safetensors::Type::kBF16},
      {"f16", ckpt::safetensors::Type::kF16}};
  const kernels::Runtime runtime;
  ProgressLine progress("export");
  const ckpt::Exported done = ckpt::export_hugging_face(ckpt::resolve(arguments.path),
                                                        {.to = arguments.to,
                                                         .type = types.at(arguments.dtype),
                                                         .shard_size = Bytes(arguments.shard_size),
                                                         .progress = std::ref(progress)});
  if (arguments.json) {
    fmt::print("{{\"folder\": {}, \"files\": {}, \"tensors\": {}, \"bytes\": {}}}\n",
               json_quoted(done.folder.string()), done.files.size(), done.tensors,
               done.bytes.value);
  } else {
    fmt::print("{}: {} tensors, {} in {} file{}\n", done.folder.string(), done.tensors,
               human(done.bytes), done.files.size(), done.files.size() == 1 ? "" : "s");
  }
  return 0;
}

int import_weights(Context& context, const Arguments& arguments) {
  std::optional<ProgressLine> progress;
  if (context.world().is_root()) progress.emplace("import");
  const fs::path path = ckpt::import_hugging_face(context.world(), arguments.path, arguments.to,
                                                  [&](Bytes done, Bytes all) {
                                                    if (progress) (*progress)(done, all);
                                                  });
  progress.reset();
  if (!context.world().is_root()) return 0;
  fmt::print("{}\n", arguments.json
                         ? fmt::format("{{\"checkpoint\": {}}}", json_quoted(path.string()))
                         : path.string());
  return 0;
}

int salvage(Context& context, const Arguments& arguments) {
  std::optional<ProgressLine> progress("salvage");
  const ckpt::Salvaged done = ckpt::salvage(context.world(), ckpt::resolve(arguments.path),
                                            arguments.copies, arguments.to, std::ref(*progress));
  progress.reset();
  fmt::print("{}\n", ckpt::to_text(done, arguments.json));
  return 0;
}

// A run that is going on removes its own checkpoints.
FileDescriptor lock_of_run(const fs::path& run) {
  std::error_code ignored;
  if (!fs::exists(run / ".lock", ignored)) return {};
  train::RunFolder folder{config::Run{}};
  folder.root = run;
  return folder.lock();
}

int prune(const Arguments& arguments) {
  const fs::path given = fs::absolute(arguments.path).lexically_normal();
  const fs::path folder = fs::is_directory(given / "checkpoints") ? given / "checkpoints" : given;
  ckpt::KeepRules rules = arguments.rules;
  for (const std::int64_t step : arguments.steps) rules.steps.emplace_back(step);
  rules.damaged = !arguments.drop_damaged;
  const FileDescriptor lock = lock_of_run(folder.parent_path());
  const auto plan = ckpt::plan_pruning(folder, rules);
  if (!arguments.dry_run) ckpt::carry_out(plan);
  fmt::print("{}\n", ckpt::to_text(plan, arguments.json));
  return 0;
}

struct Added {
  CLI::App* command;
  Arguments& arguments;
};

// Adds a subcommand whose `action(arguments)` runs with what the command line says.
template <class Action>
Added add(Program program, CLI::App& parent, const char* name, const char* help, const char* what,
          Action action) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = parent.add_subcommand(name, help);
  command->add_option("path", arguments->path, what)->required();
  command->add_flag("--json", arguments->json, "one JSON object on standard output");
  command->callback([program, arguments, action] {
    program.action = [arguments, action] { return action(*arguments); };
  });
  return {command, *arguments};
}

using RunInContext = int (*)(Context&, const Arguments&);

auto in_context(Program program, RunInContext run) {
  return [program, run](const Arguments& arguments) {
    return run_in_context(program.argc, program.argv,
                          [&](Context& context) { return run(context, arguments); });
  };
}

void add_copies(const Added& added) {
  added.command
      ->add_option("--copy", added.arguments.copies,
                   "another place of the same save: a checkpoint, or a folder for checkpoints")
      ->allow_extra_args(false);
}

void add_to(const Added& added, const char* what) {
  added.command->add_option("--to", added.arguments.to, what)->required();
}

void add_export(const Added& added) {
  added.command->alias("merge-weights");
  add_to(added, "the folder to make");
  added.command->add_option("--dtype", added.arguments.dtype, "type of the weights")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  added.command
      ->add_option("--shard-size", added.arguments.shard_size,
                   "largest file, such as 5GB or 512MiB")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber);
}

void add_prune(const Added& added) {
  const auto& [command, arguments] = added;
  command->add_option("--keep-last", arguments.rules.last, "keep the newest so many")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--keep-every", arguments.rules.every,
                   "keep those whose step is a multiple of this")
      ->check(CLI::PositiveNumber);
  command->add_option("--keep", arguments.steps, "keep this step")
      ->allow_extra_args(false)
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--damaged", arguments.drop_damaged, "remove damaged ones too");
  command->add_flag("--dry-run", arguments.dry_run, "say what would go, remove nothing");
}

}  // namespace

void add_checkpoint(Program program) {
  CLI::App& ckpt = *program.cli.add_subcommand(
      "ckpt", "look into checkpoints, check, compare, mend and convert them");
  ckpt.require_subcommand(1);
  const char* one = "a checkpoint, or a run's folder (its newest checkpoint)";
  const char* place = "the checkpoint (step-NNNNNNNN), or a folder for checkpoints";
  add(program, ckpt, "inspect", "what a checkpoint holds", one, inspect);
  add_copies(add(program, ckpt, "verify",
                 "read every byte and check it; say what is damaged and where it is right", one,
                 verify));
  const Added digest =
      add(program, ckpt, "hash", "a digest of the logical content: equal content, equal digest",
          one, hash);
  digest.command->add_option("more", digest.arguments.more, "further ones");
  const Added two =
      add(program, ckpt, "diff",
          "what differs in content of two; exit code 0 only when equal to the bit", one, diff);
  two.command->add_option("other", two.arguments.other, one)->required();
  add_export(add(program, ckpt, "export", "write the weights as a Hugging Face folder", one,
                 export_weights));
  add_to(add(program, ckpt, "import", "make a checkpoint, weights only, of a Hugging Face folder",
             "a folder with config.json and safetensors", in_context(program, import_weights)),
         place);
  const Added saved =
      add(program, ckpt, "salvage", "save what is right in a damaged checkpoint, tensor by tensor",
          one, in_context(program, salvage));
  add_to(saved, place);
  add_copies(saved);
  add_prune(add(program, ckpt, "prune",
                "remove the checkpoints that no rule keeps; the newest complete one stays always",
                "a run's folder, or its checkpoints folder", prune));
}

}  // namespace trireme::app
