// Token sequences of fixed length L from files. A sample is L + 1 consecutive tokens: the inputs
// are the first L, the targets the last L. Sample i of a source covers its tokens [i * L, i * L +
// L]; neighbours share that one token, so every token of a source but its first is a target at most
// once per pass (what is left over at its end never is).
//
// Files are read, not mapped: a file that is cut short while a run uses it is an Io error that
// names it, where a mapping would kill the process with SIGBUS. Replacing a file (new name moved
// over the old) does not disturb a run; editing one in place changes what the run reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

struct SourceOptions {
  std::filesystem::path path;
  std::string format = "text";  // a name of formats()
  std::string key = "text";     // jsonl: of the text in each line
  // How often this source's samples occur in an epoch: 2 = each twice, 0.25 = a quarter of
  // them, 1.5 = all and a half again. The part is chosen pseudo-randomly over the whole source, and
  // is the same in every epoch and every run.
  double weight = 1.0;
};

struct DatasetOptions {
  std::vector<SourceOptions> sources;
  // "bytes", or a number: the vocabulary of files that hold tokens already (see tokenizer.hpp).
  std::string tokenizer = "bytes";
  std::int64_t sequence_length = 256;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint64_t num_samples() const = 0;
  virtual std::int64_t sequence_length() const = 0;
  virtual std::int64_t vocabulary_size() const = 0;
  // Samples of each source; one source's lie behind the other's.
  virtual std::vector<std::uint64_t> source_sizes() const { return {num_samples()}; }
  // Writes sequence_length + 1 token ids of sample `index` < num_samples(). May be called from
  // several threads. Throws Io when the file cannot be read or has become shorter since it was
  // opened.
  virtual void read(std::uint64_t index, std::span<std::int64_t> tokens) const = 0;
  // Writes, for each of the sample's sequence_length + 1 tokens, the number of its document within
  // the sample, counted from 0: what block-diagonal attention and masks of the loss are made from.
  // Sources that know no documents are one.
  virtual void read_documents(std::uint64_t index, std::span<std::int32_t> documents) const;
};

// The names of the formats that open() takes, such as "jsonl".
std::span<const std::string> formats();

// Opens the sources. Throws Config for a missing, empty, damaged or unreadable file, an unknown
// format or tokenizer, a weight that is no positive number or takes no sample, and text shorter than one
// sample, naming file and sizes; all problems in one error.
std::shared_ptr<const Dataset> open(const DatasetOptions& options);

struct Split {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> eval;  // null for fraction 0
};

// Holds out the last `fraction` of every source (rounded down; one sample of the longest when that
// leaves none) as evaluation data, in order and without weights; the weights apply to what is left.
// No token is a target of both. Throws Config for a fraction outside [0, 1) and when a source would
// have nothing left to train on.
Split split(std::shared_ptr<const Dataset> whole, double fraction);

}  // namespace trireme::data
