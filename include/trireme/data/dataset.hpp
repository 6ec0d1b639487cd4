// Token sequences of fixed length from files. A sample is sequence_length + 1 consecutive tokens: the inputs are the
// first sequence_length, the targets the last; consecutive samples overlap by that one token, so every token of a
// source but its first is a target exactly once per epoch.
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
  std::string format = "text";   // "text": UTF-8 or any bytes; one token per byte
  double weight = 1.0;           // how often this source's samples occur in an epoch; the fraction takes a fixed part
};

struct DatasetOptions {
  std::vector<SourceOptions> sources;
  std::string tokenizer = "bytes";
  std::int64_t sequence_length = 256;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint64_t num_samples() const = 0;
  virtual std::int64_t sequence_length() const = 0;
  virtual std::int64_t vocabulary_size() const = 0;
  // Writes sequence_length + 1 token ids of sample `index`.
  virtual void read(std::uint64_t index, std::span<std::int64_t> tokens) const = 0;
};

// Opens (memory-maps) the sources. Throws Config for a missing, empty or unreadable file, an unknown format, and for
// text shorter than one sample, naming file and sizes; all problems in one error.
std::shared_ptr<const Dataset> open(const DatasetOptions& options);

struct Split {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> eval;
};
// Holds out the last `fraction` of the samples (at least one when fraction > 0) as contiguous evaluation data, so that
// no training sample overlaps it. Throws Config when nothing would be left to train on.
Split split(std::shared_ptr<const Dataset> whole, double fraction);

}  // namespace trireme::data
