#include "config_sources.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace trireme::app {

void ConfigSources::add_to(CLI::App& command) {
  command.add_option("files,--config", files, "configuration files; later ones win");
  command
      .add_option("--set", assignments,
                  "one setting, as in --set optimizer.lr=1e-3; wins over files")
      ->allow_extra_args(false);
  command.add_option("--accelerate", accelerate, "a file that accelerate config wrote");
  command.add_option("--deepspeed", deepspeed, "a DeepSpeed file; native settings win over it");
  command.add_option("--training-arguments,--training_arguments", training_arguments,
                     "TrainingArguments of transformers, as JSON or YAML");
}

std::vector<config::ForeignFile> ConfigSources::foreign() const {
  std::vector<config::ForeignFile> out;
  if (!accelerate.empty()) out.push_back({config::ForeignKind::kAccelerate, accelerate});
  if (!deepspeed.empty()) out.push_back({config::ForeignKind::kDeepSpeed, deepspeed});
  if (!training_arguments.empty())
    out.push_back({config::ForeignKind::kTrainingArguments, training_arguments});
  return out;
}

config::LoadedForeign ConfigSources::load(std::optional<std::int64_t> num_ranks,
                                          bool partial) const {
  return config::load({files.begin(), files.end()}, assignments, foreign(), num_ranks, partial);
}

void print_notices(const std::vector<config::ForeignFinding>& findings) {
  for (const config::ForeignFinding& finding : findings) {
    const char* word = nullptr;
    switch (finding.severity) {
      case config::Severity::kError:
        continue;
      case config::Severity::kWarning:
        word = "warning";
        break;
      case config::Severity::kDeprecated:
        word = "old name";
        break;
      case config::Severity::kNotApplicable:
        word = "no effect";
        break;
    }
    fmt::print(stderr, "trireme: {}: {}\n", word, finding.report());
  }
}

}  // namespace trireme::app
