#include "trireme/base/error.hpp"
#include "trireme/memory/process.hpp"
#include "trireme/train/evaluate.hpp"

#include "commands.hpp"
#include "run_in_context.hpp"
#include <fmt/format.h>

#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  std::string checkpoint;
  std::vector<std::string> texts;
  std::string key = "text";
  std::int64_t stride = 0;
  std::string choices;
};

void evaluate_text(Context& context, const Arguments& arguments) {
  train::TextQuestion question{arguments.checkpoint, {}, arguments.stride};
  for (const std::filesystem::path path : arguments.texts) {
    const auto inner = data::is_packed(path) ? path.stem() : path;
    const bool lines = inner.extension() == ".jsonl";
    question.sources.push_back({path, lines ? "jsonl" : "text", arguments.key});
  }
  const train::TextScore score = train::evaluate_text(context.world(), question);
  if (!context.world().is_root()) return;
  fmt::print("documents      {}\nbytes          {}\ntokens         {}\n", score.documents,
             score.bytes, score.tokens);
  fmt::print("loss           {:.9g}\nperplexity     {:.9g}\nbits per byte  {:.9g}\n", score.loss(),
             score.perplexity(), score.bits_per_byte());
}

void evaluate_choices(Context& context, const Arguments& arguments) {
  const train::ChoiceScore score =
      train::evaluate_choices(context.world(), arguments.checkpoint, arguments.choices);
  if (!context.world().is_root()) return;
  const auto part = [&](std::uint64_t right) {
    return static_cast<double>(right) / static_cast<double>(score.questions);
  };
  fmt::print("questions      {}\nright          {} ({:.4f})\nright by byte  {} ({:.4f})\n",
             score.questions, score.right, part(score.right), score.right_per_byte,
             part(score.right_per_byte));
}

int run(Context& context, const Arguments& arguments) {
  memory::keep_freed_memory();
  if (arguments.texts.empty() && arguments.choices.empty()) {
    Error error(ErrorKind::kConfig, "eval: nothing to evaluate on", "give --text or --choices");
    error.everywhere = true;
    throw error;
  }
  if (!arguments.texts.empty()) evaluate_text(context, arguments);
  if (!arguments.choices.empty()) evaluate_choices(context, arguments);
  return 0;
}

}  // namespace

void add_eval(Program program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.cli.add_subcommand(
      "eval", "loss, perplexity and bits per byte of texts; multiple choice");
  command
      ->add_option("checkpoint", arguments->checkpoint,
                   "a checkpoint or a run's folder (its newest)")
      ->required();
  command->add_option("--text", arguments->texts, "text or .jsonl, packed (.gz, .zst) or not");
  command->add_option("--key", arguments->key, "JSON lines: the key of the text")
      ->capture_default_str();
  command
      ->add_option("--stride", arguments->stride,
                   "tokens between windows; 0: windows do not overlap")
      ->capture_default_str();
  command->add_option("--choices", arguments->choices,
                      "a file of lines {\"prompt\": .., \"choices\": [..], \"answer\": 0}");
  command->callback([program, arguments] {
    program.action = [program, arguments] {
      return run_in_context(program.argc, program.argv,
                            [&](Context& context) { return run(context, *arguments); });
    };
  });
}

}  // namespace trireme::app
