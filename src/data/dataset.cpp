#include "trireme/data/dataset.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/documents.hpp"
#include "trireme/data/order.hpp"
#include "trireme/data/tokenizer.hpp"

#include "data/input_file.hpp"
#include "data/token_file.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace trireme::data {

namespace {

using detail::TokenFile;

// A stretch of one source's samples and how often it occurs in an epoch.
struct Part {
  std::shared_ptr<const TokenFile> file;  // training and evaluation parts read the same open file
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  double weight = 1.0;
};

// Samples that the fraction of a weight takes once more.
std::uint64_t fraction_of(const Part& part) {
  const double fraction = part.weight - std::floor(part.weight);
  return static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(part.count)));
}

std::uint64_t occurrences(const Part& part) {
  return static_cast<std::uint64_t>(part.weight) * part.count + fraction_of(part);
}

// Sample number `index` among a part's occurrences: whole passes in order, then the fraction's
// choice, which is spread over the part by a permutation that depends on nothing but the part's
// length.
std::uint64_t sample_of(const Part& part, std::uint64_t index) {
  if (index < static_cast<std::uint64_t>(part.weight) * part.count) {
    return part.first + index % part.count;
  }
  const Permutation choice(part.count, stream_key(0, "weight"));
  return part.first + choice(index % part.count);
}

class Mixture final : public Dataset {
 public:
  Mixture(std::vector<Part> parts, std::int64_t sequence_length, std::int64_t vocabulary)
      : parts_(std::move(parts)), sequence_length_(sequence_length), vocabulary_(vocabulary) {
    for (const Part& part : parts_) ends_.push_back(num_samples() + occurrences(part));
  }

  std::uint64_t num_samples() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::int64_t sequence_length() const override { return sequence_length_; }
  std::int64_t vocabulary_size() const override { return vocabulary_; }
  const std::vector<Part>& parts() const { return parts_; }

  std::vector<std::uint64_t> source_sizes() const override {
    std::vector<std::uint64_t> sizes;
    for (const Part& part : parts_) sizes.push_back(occurrences(part));
    return sizes;
  }

  void read(std::uint64_t index, std::span<std::int64_t> tokens) const override {
    ensure(std::ssize(tokens) == sequence_length_ + 1, "a sample has sequence_length + 1 tokens");
    const auto [part, first] = locate(index);
    part->file->read(first, tokens);
    const auto bad = std::ranges::find_if(tokens, [&](auto id) { return id >= vocabulary_; });
    if (bad == tokens.end()) return;
    throw Error(
        ErrorKind::kCorrupt,
        fmt::format("{}: token {} is {}, outside the vocabulary of {}", part->file->path().string(),
                    first + static_cast<std::uint64_t>(bad - tokens.begin()), *bad, vocabulary_),
        "data.tokenizer must be what the file was made with; or its format is another");
  }

  void read_documents(std::uint64_t index, std::span<std::int32_t> documents) const override {
    const auto [part, first] = locate(index);
    const std::span<const std::uint64_t> ends = part->file->document_ends();
    auto end = std::ranges::upper_bound(ends, first);
    std::int32_t number = 0;
    for (std::size_t t = 0; t < documents.size(); ++t) {
      if (end != ends.end() && *end == first + t) {
        ++end;
        ++number;
      }
      documents[t] = number;
    }
  }

 private:
  struct Location {
    const Part* part;
    std::uint64_t first;  // token
  };

  Location locate(std::uint64_t index) const {
    ensure(index < num_samples(), "sample index outside the dataset");
    const auto end = std::ranges::upper_bound(ends_, index);
    const auto which = static_cast<std::size_t>(end - ends_.begin());
    const std::uint64_t begin = which == 0 ? 0 : ends_[which - 1];
    const Part& part = parts_[which];
    return {&part, sample_of(part, index - begin) * static_cast<std::uint64_t>(sequence_length_)};
  }

  std::vector<Part> parts_;
  std::vector<std::uint64_t> ends_;  // of each part, in occurrences
  std::int64_t sequence_length_;
  std::int64_t vocabulary_;
};

// A stretch of a dataset that is not ours.
class Stretch final : public Dataset {
 public:
  Stretch(std::shared_ptr<const Dataset> whole, std::uint64_t first, std::uint64_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {}

  std::uint64_t num_samples() const override { return count_; }
  std::int64_t sequence_length() const override { return whole_->sequence_length(); }
  std::int64_t vocabulary_size() const override { return whole_->vocabulary_size(); }

  void read(std::uint64_t index, std::span<std::int64_t> tokens) const override {
    ensure(index < count_, "sample index outside the dataset");
    whole_->read(first_ + index, tokens);
  }
  void read_documents(std::uint64_t index, std::span<std::int32_t> documents) const override {
    ensure(index < count_, "sample index outside the dataset");
    whole_->read_documents(first_ + index, documents);
  }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::uint64_t first_;
  std::uint64_t count_;
};

void throw_if_any(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  if (problems.size() == 1) throw Error(ErrorKind::kConfig, problems.front());
  std::string all = fmt::format("{} problems with the data:", problems.size());
  for (const std::string& problem : problems) all += "\n  " + problem;
  throw Error(ErrorKind::kConfig, all);
}

std::string unknown(std::string_view what, const std::string& word,
                    std::span<const std::string> known) {
  const std::optional<std::string> suggestion = nearest(word, known);
  return fmt::format("unknown {} '{}'; {} '{}'", what, word,
                     suggestion ? "did you mean" : "there is",
                     suggestion ? *suggestion : fmt::format("{}", fmt::join(known, "', '")));
}

const std::array<std::string, 8> kFormats{"text",  "jsonl",   "tokens", "megatron",
                                          "llm.c", "nanogpt", "uint32", "parquet"};

// Text up to this size is tokenized when it is opened; more is worth a file of tokens.
constexpr std::uint64_t kMostTextInMemory = std::uint64_t{1} << 28;

std::shared_ptr<const TokenFile> tokenize_in_memory(const SourceOptions& source,
                                                    const Tokenizer& tokenizer) {
  const std::uint64_t size = detail::InputFile(source.path).size();
  if (size > kMostTextInMemory) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{} bytes are too many to tokenize at every start; cut the file into "
                            "several, or give files of tokens",
                            size));
  }
  const auto documents = open_documents({source.path, source.format, source.key});
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint64_t> ends;
  for (std::string text; documents->next(text);) {
    tokenizer.encode(text, false, tokens);
    if (const auto end = tokenizer.end_of_text()) tokens.push_back(*end);
    if (tokens.size() > (ends.empty() ? 0 : ends.back())) ends.push_back(tokens.size());
  }
  return detail::tokens_in_memory(source.path, std::move(tokens), std::move(ends),
                                  tokenizer.vocabulary_size());
}

std::shared_ptr<const TokenFile> open_tokens(const SourceOptions& source,
                                             const Tokenizer& tokenizer) {
  const bool text = source.format == "text" || source.format == "jsonl";
  if (source.format == "parquet") {
    throw Error(ErrorKind::kConfig,
                "Parquet is not read in this version: Debian 12 has no Arrow; write JSON lines "
                "from it, such as pandas.read_parquet(..).to_json(orient='records', lines=True)");
  }
  if (text && !tokenizer.has_text()) {
    throw Error(ErrorKind::kConfig,
                fmt::format("text needs a tokenizer; {} is only the size of a vocabulary",
                            tokenizer.vocabulary_size()));
  }
  if (source.format == "text" && tokenizer.one_token_per_byte() && !is_packed(source.path)) {
    return detail::open_bytes(source.path);
  }
  if (text) return tokenize_in_memory(source, tokenizer);
  auto file = detail::open_token_file(source.path, source.format);
  if (file->vocabulary() > tokenizer.vocabulary_size()) {
    throw Error(ErrorKind::kConfig,
                fmt::format("made with a vocabulary of {}, but data.tokenizer has {} tokens",
                            file->vocabulary(), tokenizer.vocabulary_size()));
  }
  return file;
}

// Returns what is wrong with a weight for `count` samples, or nothing. Epochs stay countable: 2^62
// samples at most.
std::string weight_problem(double weight, std::uint64_t count) {
  if (!(weight > 0) || std::isinf(weight)) {
    return fmt::format("weight {} is not a positive number", weight);
  }
  if (weight * static_cast<double>(count) >= 0x1p62) {
    return fmt::format("weight {} makes the epoch too long", weight);
  }
  if (weight < 1 && std::llround(weight * static_cast<double>(count)) == 0) {
    return fmt::format("weight {} of {} samples takes none of them", weight, count);
  }
  return {};
}

// The message of an error about a file, without the path that note() puts in front of it.
std::string about_file(const Error& error, const std::filesystem::path& path) {
  std::string message = error.message;
  const std::string start = path.string() + ": ";
  if (message.starts_with(start)) message.erase(0, start.size());
  return error.hint.empty() ? message : fmt::format("{} ({})", message, error.hint);
}

// Opens one source, or notes what is wrong with it.
std::optional<Part> open_source(const SourceOptions& source, const Tokenizer* tokenizer,
                                std::int64_t sequence_length, std::vector<std::string>& problems) {
  const auto note = [&](std::string_view problem) {
    problems.push_back(fmt::format("{}: {}", source.path.string(), problem));
  };
  const std::size_t before = problems.size();
  const bool known = std::ranges::find(kFormats, source.format) != kFormats.end();
  if (!known) note(unknown("format", source.format, kFormats));
  Part part{.file = nullptr, .weight = source.weight};
  std::uint64_t tokens = 0;
  try {
    // Without a tokenizer, or a format, the file can still be missing.
    part.file = known && tokenizer != nullptr ? open_tokens(source, *tokenizer)
                                              : detail::open_bytes(source.path);
    tokens = part.file->num_tokens();
  } catch (const Error& error) {
    note(about_file(error, source.path));
  }
  const auto length = static_cast<std::uint64_t>(sequence_length);
  if (part.file && tokens == 0) {
    note("the file is empty");
  } else if (part.file && sequence_length >= 1 && tokens <= length) {
    note(fmt::format("{} tokens are too few: one sample is sequence_length + 1 = {}", tokens,
                     length + 1));
  } else if (part.file && sequence_length >= 1) {
    part.count = (tokens - 1) / length;
  }
  // The count of a file that could not be used would only lead to a second complaint about the same
  // thing.
  const std::string about_weight =
      weight_problem(source.weight, std::max<std::uint64_t>(part.count, 1));
  if (!about_weight.empty() && (part.count > 0 || !(source.weight > 0))) note(about_weight);
  if (problems.size() > before) return std::nullopt;
  return part;
}

// Samples to hold out of each part.
std::vector<std::uint64_t> held_out(const std::vector<Part>& parts, double fraction) {
  std::vector<std::uint64_t> held;
  std::uint64_t total = 0;
  for (const Part& part : parts) {
    held.push_back(static_cast<std::uint64_t>(static_cast<double>(part.count) * fraction));
    total += held.back();
  }
  if (total == 0) {
    const auto longest = std::ranges::max_element(parts, {}, &Part::count);
    held[static_cast<std::size_t>(longest - parts.begin())] = 1;
  }
  return held;
}

Split split_mixture(const Mixture& whole, double fraction) {
  const std::vector<std::uint64_t> held = held_out(whole.parts(), fraction);
  std::vector<std::string> problems;
  std::vector<Part> train;
  std::vector<Part> eval;
  for (std::size_t i = 0; i < held.size(); ++i) {
    Part kept = whole.parts()[i];
    kept.count -= held[i];
    if (held[i] > 0) eval.push_back({kept.file, kept.first + kept.count, held[i], 1.0});
    const std::string problem =
        kept.count == 0 ? fmt::format("holding out {} of {} samples leaves nothing to train on",
                                      held[i], held[i])
                        : weight_problem(kept.weight, kept.count);
    if (!problem.empty()) problems.push_back(kept.file->path().string() + ": " + problem);
    train.push_back(std::move(kept));
  }
  throw_if_any(problems);
  return {std::make_shared<const Mixture>(std::move(train), whole.sequence_length(),
                                          whole.vocabulary_size()),
          std::make_shared<const Mixture>(std::move(eval), whole.sequence_length(),
                                          whole.vocabulary_size())};
}

Split split_any(const std::shared_ptr<const Dataset>& whole, double fraction) {
  const std::uint64_t count = whole->num_samples();
  const auto held =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(count) * fraction));
  if (held >= count) {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("holding out {} of {} samples leaves nothing to train on", held, count));
  }
  return {std::make_shared<const Stretch>(whole, 0, count - held),
          std::make_shared<const Stretch>(whole, count - held, held)};
}

}  // namespace

std::span<const std::string> formats() { return kFormats; }

void Dataset::read_documents(std::uint64_t /*index*/, std::span<std::int32_t> documents) const {
  std::ranges::fill(documents, 0);
}

std::shared_ptr<const Dataset> open(const DatasetOptions& options) {
  std::vector<std::string> problems;
  if (options.sources.empty()) problems.emplace_back("no data sources are given");
  if (options.sequence_length < 1) {
    problems.push_back(fmt::format("sequence_length {} is less than 1", options.sequence_length));
  }
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(options.tokenizer);
  } catch (const Error& error) {
    problems.push_back(error.hint.empty() ? error.message
                                          : fmt::format("{}; {}", error.message, error.hint));
  }
  std::vector<Part> parts;
  for (const SourceOptions& source : options.sources) {
    if (auto part = open_source(source, tokenizer.get(), options.sequence_length, problems)) {
      parts.push_back(*std::move(part));
    }
  }
  throw_if_any(problems);
  return std::make_shared<const Mixture>(std::move(parts), options.sequence_length,
                                         tokenizer->vocabulary_size());
}

Split split(std::shared_ptr<const Dataset> whole, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    throw Error(ErrorKind::kConfig,
                fmt::format("the evaluation fraction {} is not in [0, 1)", fraction));
  }
  if (fraction == 0) return {std::move(whole), nullptr};
  const auto* mixture = dynamic_cast<const Mixture*>(whole.get());
  return mixture != nullptr ? split_mixture(*mixture, fraction) : split_any(whole, fraction);
}

}  // namespace trireme::data
