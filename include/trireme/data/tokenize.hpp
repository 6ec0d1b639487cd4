// Corpora of text to files of tokens, in parts that ranks and threads write each on their own. A
// part that is there already and was made from the same texts by the same tokenizer is kept, so an
// interrupted run is continued by starting it again.
#pragma once

#include "trireme/data/documents.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::data {

// Which of the parts a process works on.
struct Share {
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
  unsigned threads = 1;
};

struct TokenizeOptions {
  std::vector<TextSource> sources;
  std::string tokenizer;                              // a name for load_tokenizer()
  std::filesystem::path to;                           // the folder
  std::uint64_t part_bytes = std::uint64_t{1} << 26;  // of JSON lines; other files are a part each
  // Called now and then by any thread, one at a time, with bytes of input.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

struct TokenizeResult {
  std::uint64_t parts = 0;  // of this share
  std::uint64_t kept = 0;   // of them, what was there already
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
};

// Writes this share of the parts. Throws Config when the folder holds something else or a source
// cannot be opened, Corrupt for damaged text, Io when a part cannot be written.
TokenizeResult tokenize(const TokenizeOptions& options, const Share& share);

struct BpeTraining {
  std::vector<TextSource> sources;
  std::uint32_t vocabulary = 32000;
  std::string pattern = "llama3";  // how text is cut: gpt2, llama3 or qwen2
  std::vector<std::string> special = {"<|endoftext|>"};
  std::uint64_t least_count = 2;  // pairs that occur less often are not merged
  unsigned threads = 1;
};

// Returns a tokenizer.json of a byte-level BPE; the same for any number of threads. Throws Config
// for a vocabulary without room for bytes and special tokens.
std::string train_bpe(const BpeTraining& training);

// What a file is and holds, in rows of a name and its value. The format is found out where `format`
// is empty; with `verify`, our own parts are read whole and compared with their checksums. Throws
// Config, Corrupt or Io as reading it for training would.
struct InspectOptions {
  std::filesystem::path path;
  std::string format = {};
  std::string key = "text";
  std::string tokenizer = {};  // to show the first tokens as text
  bool verify = false;
};
std::vector<std::pair<std::string, std::string>> inspect(const InspectOptions& options);

}  // namespace trireme::data
