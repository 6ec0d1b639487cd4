#include "trireme/kernels/runtime.hpp"
#include "trireme/memory/process.hpp"
#include "trireme/train/generate.hpp"

#include "commands.hpp"

#include <cstdio>
#include <memory>

namespace trireme::app {

void add_generate(Program program) {
  auto options = std::make_shared<train::GenerateOptions>();
  CLI::App* command =
      program.cli.add_subcommand("generate", "write text with a trained checkpoint");
  command
      ->add_option("checkpoint", options->checkpoint, "a checkpoint or a run's folder (its newest)")
      ->required();
  command->add_option("--prompt", options->prompt, "the text to go on from");
  command->add_option("--tokens", options->tokens, "how many tokens to write")
      ->capture_default_str();
  command
      ->add_option("--temperature", options->sampling.temperature,
                   "0: always the likeliest token; higher: bolder")
      ->capture_default_str();
  command
      ->add_option("--top-k", options->sampling.top_k,
                   "draw among the k likeliest tokens only; 0: among all")
      ->capture_default_str();
  command
      ->add_option("--top-p", options->sampling.top_p,
                   "draw among the likeliest tokens that together have this probability")
      ->capture_default_str();
  command
      ->add_option("--min-p", options->sampling.min_p,
                   "draw among tokens with this part of the likeliest one's probability")
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", options->sampling.repetition_penalty,
                   "above 1: what was written already is less likely")
      ->capture_default_str();
  command->add_option("--stop", options->stop, "end before this text; may be given several times")
      ->allow_extra_args(false);
  command->add_option("--seed", options->seed, "the same seed writes the same text")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->callback([program, options] {
    program.action = [options] {
      memory::keep_freed_memory();
      const kernels::Runtime runtime;
      train::generate(*options, [](std::string_view piece) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      });
      std::fputc('\n', stdout);
      return 0;
    };
  });
}

}  // namespace trireme::app
