// Training of a byte-level BPE: the pair that occurs most often is merged, again and again. Counts
// of pairs are kept up to date word by word, so a merge costs what it changes.
#include "trireme/base/error.hpp"
#include "trireme/data/tokenize.hpp"

#include "data/tokenizer/pre_tokenizer.hpp"
#include "data/tokenizer/subword.hpp"
#include "data/tokenizer/unicode.hpp"
#include "data/work_parts.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>

namespace trireme::data {

namespace {

using nlohmann::json;
using Counts = std::unordered_map<std::string, std::uint64_t>;
using Pair = std::pair<std::uint32_t, std::uint32_t>;

struct Pattern {
  std::string_view name;
  std::string_view regex;
  detail::ScanRules rules;
};
constexpr std::array<Pattern, 3> kPatterns{
    {{"gpt2", detail::kGpt2Pattern, detail::kGpt2Rules},
     {"llama3", detail::kLlama3Pattern, detail::kLlama3Rules},
     {"qwen2", detail::kQwen2Pattern, detail::kQwen2Rules}}};

const Pattern& pattern_named(const std::string& name) {
  const auto found = std::ranges::find(kPatterns, name, &Pattern::name);
  if (found != kPatterns.end()) return *found;
  throw Error(ErrorKind::kConfig, fmt::format("'{}' is no pattern", name),
              "there are gpt2, llama3 and qwen2");
}

void count_words(const TextSource& source, const detail::ScanRules& rules, Counts& counts) {
  const auto documents = open_documents(source);
  detail::Pieces pieces;
  for (std::string text; documents->next(text);) {
    if (!detail::is_utf8(text)) text = detail::to_utf8(text);
    pieces.all.clear();
    detail::scan(text, rules, true, pieces);
    for (const detail::Piece& piece : pieces.all) ++counts[std::string(piece.text)];
  }
}

// The words of all sources in order of their bytes, so that nothing depends on threads.
std::map<std::string, std::uint64_t> all_words(const BpeTraining& training) {
  constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 24;
  const auto parts = detail::parts_of(training.sources, kPartBytes);
  const Pattern& pattern = pattern_named(training.pattern);
  std::vector<Counts> counts(std::max(1U, training.threads));
  detail::work_on(parts.size(), {0, 1, training.threads}, [&](std::size_t part, unsigned thread) {
    count_words(parts[part].source, pattern.rules, counts[thread]);
  });
  std::map<std::string, std::uint64_t> words;
  for (const Counts& some : counts) {
    for (const auto& [word, count] : some) words[word] += count;
  }
  return words;
}

class Trainer {
 public:
  explicit Trainer(const BpeTraining& training) : training_(training) {
    for (const std::string& token : training.special) tokens_.push_back(token);
    std::array<unsigned char, 256> bytes;
    for (unsigned byte = 0; byte < 256; ++byte) bytes[byte] = static_cast<unsigned char>(byte);
    std::ranges::sort(bytes, {}, detail::character_of_byte);
    std::array<std::uint32_t, 256> ids;
    for (const unsigned char byte : bytes) {
      ids[byte] = static_cast<std::uint32_t>(tokens_.size());
      detail::append(tokens_.emplace_back(), detail::character_of_byte(byte));
    }
    if (training.vocabulary < tokens_.size()) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("a vocabulary of {} has no room for 256 bytes and {} special tokens",
                              training.vocabulary, training.special.size()));
    }
    for (const auto& [text, count] : all_words(training)) {
      Word word{{}, static_cast<std::int64_t>(count)};
      for (const char c : text) word.ids.push_back(ids[static_cast<unsigned char>(c)]);
      words_.push_back(std::move(word));
    }
  }

  void run() {
    for (std::uint32_t w = 0; w < words_.size(); ++w) change_pairs(w, +1);
    for (const auto& [key, pair] : pairs_) queue_.push({pair.count, unpacked(key)});
    while (tokens_.size() < training_.vocabulary && !queue_.empty()) {
      const Best best = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_.at(packed(best.pair)).count;
      if (now != best.count) {
        if (now > 0) queue_.push({now, best.pair});
        continue;
      }
      if (now < static_cast<std::int64_t>(training_.least_count)) break;
      merge(best.pair);
    }
  }

  std::string to_json() const {
    const Pattern& pattern = pattern_named(training_.pattern);
    json vocabulary = json::object();
    for (std::size_t id = 0; id < tokens_.size(); ++id) vocabulary[tokens_[id]] = id;
    json merges = json::array();
    for (const auto& [left, right] : merges_) merges.push_back({tokens_[left], tokens_[right]});
    json added = json::array();
    for (std::size_t id = 0; id < training_.special.size(); ++id) {
      added.push_back({{"id", id},
                       {"content", training_.special[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    const auto byte_level = [](bool cut) {
      return json{{"type", "ByteLevel"},
                  {"add_prefix_space", false},
                  {"trim_offsets", true},
                  {"use_regex", cut}};
    };
    const json split{{"type", "Split"},
                     {"pattern", {{"Regex", pattern.regex}}},
                     {"behavior", "Isolated"},
                     {"invert", false}};
    return json{
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", added},
        {"normalizer", nullptr},
        {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false)}}}},
        {"post_processor", nullptr},
        {"decoder", byte_level(true)},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", vocabulary},
          {"merges", merges}}}}
        .dump(1);
  }

 private:
  struct Word {
    std::vector<std::uint32_t> ids;
    std::int64_t count;
  };
  struct PairCount {
    std::int64_t count = 0;
    std::unordered_set<std::uint32_t> words;  // that have it, or had it
  };
  // The most frequent first; of equals the one of the smallest ids.
  struct Best {
    std::int64_t count;
    Pair pair;
    bool operator<(const Best& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  static std::uint64_t packed(const Pair& pair) {
    return std::uint64_t{pair.first} << 32 | pair.second;
  }
  static Pair unpacked(std::uint64_t key) {
    return {static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>(key)};
  }

  // Adds the word's pairs to the counts, or takes them away.
  void change_pairs(std::uint32_t w, int sign) {
    const Word& word = words_[w];
    for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) {
      PairCount& pair = pairs_[packed({word.ids[i], word.ids[i + 1]})];
      pair.count += sign * word.count;
      if (sign > 0) pair.words.insert(w);
    }
  }

  void merge(const Pair& pair) {
    const auto id = static_cast<std::uint32_t>(tokens_.size());
    tokens_.push_back(tokens_[pair.first] + tokens_[pair.second]);
    merges_.push_back(pair);
    const auto changed = std::exchange(pairs_[packed(pair)].words, {});
    std::unordered_set<std::uint64_t> grown;
    for (const std::uint32_t w : changed) {
      change_pairs(w, -1);
      replace(words_[w].ids, pair, id);
      change_pairs(w, +1);
      const std::vector<std::uint32_t>& ids = words_[w].ids;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        if (ids[i] == id || ids[i + 1] == id) grown.insert(packed({ids[i], ids[i + 1]}));
      }
    }
    for (const std::uint64_t key : grown) queue_.push({pairs_[key].count, unpacked(key)});
  }

  static void replace(std::vector<std::uint32_t>& ids, const Pair& pair, std::uint32_t id) {
    std::size_t to = 0;
    for (std::size_t from = 0; from < ids.size(); ++from) {
      const bool here =
          ids[from] == pair.first && from + 1 < ids.size() && ids[from + 1] == pair.second;
      ids[to++] = here ? id : ids[from];
      if (here) ++from;
    }
    ids.resize(to);
  }

  const BpeTraining& training_;
  std::vector<std::string> tokens_;
  std::vector<Pair> merges_;
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, PairCount> pairs_;
  std::priority_queue<Best> queue_;
};

}  // namespace

std::string train_bpe(const BpeTraining& training) {
  Trainer trainer(training);
  trainer.run();
  return trainer.to_json();
}

}  // namespace trireme::data
