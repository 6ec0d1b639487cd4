#include "trireme/base/error.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/tokenize.hpp"

#include "commands.hpp"
#include "progress.hpp"
#include "run_in_context.hpp"
#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <thread>

namespace trireme::app {

namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::vector<std::string> files;
  std::string format;
  std::string key = "text";
  std::string tokenizer;
  std::string to;
  std::uint32_t train_bpe = 0;
  std::string pattern = "llama3";
  std::uint64_t part_mib = 64;
  unsigned threads = 1;
  bool verify = false;
};

std::vector<data::TextSource> sources_of(const Arguments& arguments) {
  std::vector<data::TextSource> sources;
  for (const fs::path path : arguments.files) {
    const fs::path inner = data::is_packed(path) ? path.stem() : path;
    const std::string found = inner.extension() == ".jsonl" ? "jsonl" : "text";
    sources.push_back({path, arguments.format.empty() ? found : arguments.format, arguments.key});
  }
  return sources;
}

// Trains on rank 0 and puts the file where --tokenizer says; one that is there is kept.
void train_tokenizer(Context& context, const Arguments& arguments) {
  context.world().agree("train the tokenizer", [&] {
    if (!context.world().is_root() || fs::exists(arguments.tokenizer)) return;
    data::BpeTraining training{sources_of(arguments), arguments.train_bpe, arguments.pattern};
    training.threads = arguments.threads;
    const std::string text = data::train_bpe(training);
    const std::string draft = arguments.tokenizer + ".tmp";
    std::ofstream file(draft, std::ios::binary);
    if (!(file << text << "\n").flush())
      throw Error(ErrorKind::kIo, fmt::format("{} cannot be written", draft));
    file.close();
    fs::rename(draft, arguments.tokenizer);
    context.log().info(fmt::format("{}: a byte-level BPE of {} tokens at most", arguments.tokenizer,
                                   arguments.train_bpe));
  });
}

int tokenize(Context& context, const Arguments& arguments) {
  if (arguments.train_bpe > 0) train_tokenizer(context, arguments);
  data::TokenizeOptions options{sources_of(arguments), arguments.tokenizer, arguments.to,
                                arguments.part_mib << 20};
  ProgressLine line("tokenizing");
  if (context.world().is_root()) {
    options.progress = [&](std::uint64_t done, std::uint64_t all) {
      line(Bytes(static_cast<std::int64_t>(done)), Bytes(static_cast<std::int64_t>(all)));
    };
  }
  data::TokenizeResult mine;
  context.world().agree("tokenize", [&] {
    mine = data::tokenize(options,
                          {static_cast<std::uint64_t>(context.world().rank().value),
                           static_cast<std::uint64_t>(context.world().size()), arguments.threads});
  });
  data::TokenizeResult all;
  for (const auto& one : comm::all_gather_values(context.world(), mine, "tokenized")) {
    all.parts += one.parts;
    all.kept += one.kept;
    all.documents += one.documents;
    all.tokens += one.tokens;
  }
  context.log().info(fmt::format("{}: {} tokens of {} documents in {} parts, {} of them were there",
                                 arguments.to, all.tokens, all.documents, all.parts, all.kept));
  return 0;
}

int inspect(const Arguments& arguments) {
  for (const std::string& file : arguments.files) {
    const auto rows = data::inspect(
        {file, arguments.format, arguments.key, arguments.tokenizer, arguments.verify});
    for (const auto& [name, value] : rows) fmt::print("{:<18}{}\n", name, value);
  }
  return 0;
}

void add_common(CLI::App* command, Arguments& arguments) {
  command->add_option("files", arguments.files, "files, or folders of tokens")->required();
  command->add_option("--key", arguments.key, "JSON lines: the key of the text")
      ->capture_default_str();
}

}  // namespace

void add_data(Program program) {
  CLI::App* data = program.cli.add_subcommand("data", "files of text and of tokens");
  data->require_subcommand(1);

  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = data->add_subcommand(
      "tokenize", "write text as a folder of tokens; under mpirun every rank takes its share");
  add_common(command, *arguments);
  command->add_option("--format", arguments->format, "text or jsonl; else by the file's name")
      ->check(CLI::IsMember({"text", "jsonl"}));
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "bytes, or the path of a tokenizer.json; --train-bpe writes it")
      ->required();
  command->add_option("--to", arguments->to, "the folder; what is there already is kept")
      ->required();
  command
      ->add_option("--train-bpe", arguments->train_bpe,
                   "train a byte-level BPE of so many tokens on the files first")
      ->check(CLI::Range(257U, 1U << 24));
  command->add_option("--pattern", arguments->pattern, "how --train-bpe cuts text")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2"}))
      ->capture_default_str();
  command->add_option("--part-mib", arguments->part_mib, "JSON lines in a part")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "of each rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->callback([program, arguments] {
    program.action = [program, arguments] {
      return run_in_context(program.argc, program.argv,
                            [&](Context& context) { return tokenize(context, *arguments); });
    };
  });

  auto looked = std::make_shared<Arguments>();
  CLI::App* look = data->add_subcommand("inspect", "what a file is and holds");
  add_common(look, *looked);
  look->add_option("--format", looked->format, "else it is found out")
      ->check(CLI::IsMember({"text", "jsonl", "tokens", "megatron", "llm.c", "nanogpt", "uint32"}));
  look->add_option("--tokenizer", looked->tokenizer, "count tokens of text, show tokens as text");
  look->add_flag("--verify", looked->verify, "compare a folder of tokens with its checksums");
  look->callback([program, looked] { program.action = [looked] { return inspect(*looked); }; });
}

}  // namespace trireme::app
