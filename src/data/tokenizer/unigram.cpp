// Unigram: the pieces whose scores add up to the most.
#include "trireme/base/error.hpp"

#include "data/tokenizer/subword.hpp"
#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;

constexpr double kUnknownPenalty = 10;

// Tokens by their bytes.
class Trie {
 public:
  void add(std::string_view token, std::uint32_t id) {
    std::uint32_t node = 0;
    for (const char c : token) {
      const auto byte = static_cast<unsigned char>(c);
      std::uint32_t next = child(node, byte);
      if (next == 0) {
        next = static_cast<std::uint32_t>(nodes_.size());
        nodes_[node].children.emplace_back(byte, next);
        nodes_.emplace_back();
      }
      node = next;
    }
    nodes_[node].id = id;
  }

  // Calls `found(bytes, id)` for every token that `text` begins with.
  template <class Found>
  void each_prefix(std::string_view text, Found found) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].id != kNoToken) found(i + 1, nodes_[node].id);
    }
  }

 private:
  static constexpr std::uint32_t kNoToken = std::numeric_limits<std::uint32_t>::max();
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
    std::uint32_t id = kNoToken;
  };

  std::uint32_t child(std::uint32_t node, unsigned char byte) const {
    for (const auto& [with, to] : nodes_[node].children) {
      if (with == byte) return to;
    }
    return 0;
  }

  std::vector<Node> nodes_{1};
};

class Unigram final : public Subword {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<std::uint32_t> unknown,
          bool byte_fallback)
      : Subword(std::move(vocabulary)),
        scores_(std::move(scores)),
        unknown_(unknown),
        byte_fallback_(byte_fallback),
        unknown_score_(std::ranges::min(scores_) - kUnknownPenalty),
        fallback_(byte_tokens(vocabulary_)) {
    for (std::uint32_t id = 0; id < vocabulary_.end(); ++id) {
      const std::string* token = vocabulary_.token(id);
      if (token && !token->empty() && vocabulary_.find(*token) == id) trie_.add(*token, id);
    }
  }

  void encode(std::string_view piece, std::vector<std::uint32_t>& ids) const override {
    for (const std::string_view part : best_parts(piece)) {
      if (const auto id = vocabulary_.find(part)) {
        ids.push_back(*id);
      } else {
        add_unknown(part, ids);
      }
    }
  }

 private:
  // The best way to a place: its last token begins at `begin`.
  struct Step {
    double score = 0;
    std::size_t begin = std::numeric_limits<std::size_t>::max();
    bool unknown = false;
  };

  std::vector<Step> best_steps(std::string_view piece) const {
    std::vector<Step> steps(piece.size() + 1);
    const auto offer = [&](std::size_t end, const Step& step) {
      Step& best = steps[end];
      if (best.begin > piece.size() || step.score > best.score) best = step;
    };
    for (std::size_t at = 0; at < piece.size();) {
      const double here = steps[at].score;
      const std::size_t size = character_at(piece, at).size;
      bool single = false;
      trie_.each_prefix(piece.substr(at), [&](std::size_t bytes, std::uint32_t id) {
        offer(at + bytes, {here + scores_[id], at, unknown_ == id});
        single = single || bytes == size;
      });
      if (!single) offer(at + size, {here + unknown_score_, at, true});
      at += size;
    }
    return steps;
  }

  // Unknown characters that follow each other are one part.
  std::vector<std::string_view> best_parts(std::string_view piece) const {
    const std::vector<Step> steps = best_steps(piece);
    std::vector<std::string_view> parts;
    bool fusing = false;
    for (std::size_t end = piece.size(); end > 0;) {
      const Step& step = steps[end];
      const std::string_view part = piece.substr(step.begin, end - step.begin);
      if (fusing && step.unknown) {
        parts.back() = {part.data(), part.size() + parts.back().size()};
      } else {
        parts.push_back(part);
      }
      fusing = step.unknown;
      end = step.begin;
    }
    std::ranges::reverse(parts);
    return parts;
  }

  void add_unknown(std::string_view part, std::vector<std::uint32_t>& ids) const {
    const auto id = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
    if (byte_fallback_ && std::ranges::all_of(part, [&](char c) { return id(c).has_value(); })) {
      for (const char c : part) ids.push_back(*id(c));
      return;
    }
    if (!unknown_) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("the tokenizer has no token for '{}' and no unk_id", part));
    }
    ids.push_back(*unknown_);
  }

  std::vector<double> scores_;
  std::optional<std::uint32_t> unknown_;
  bool byte_fallback_;
  double unknown_score_;
  std::vector<std::optional<std::uint32_t>> fallback_;
  Trie trie_;
};

}  // namespace

std::unique_ptr<const Subword> make_unigram(const Json& json) {
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (const Json& entry : json.at("vocab")) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        !std::isfinite(entry[1].get<double>())) {
      throw Error(
          ErrorKind::kCorrupt,
          fmt::format("entry {} of the vocabulary is no pair of text and score", scores.size()));
    }
    vocabulary.add(entry[0].get<std::string>(), static_cast<std::uint32_t>(scores.size()));
    scores.push_back(entry[1].get<double>());
  }
  if (scores.empty()) throw Error(ErrorKind::kCorrupt, "the vocabulary is empty");
  std::optional<std::uint32_t> unknown;
  if (json.contains("unk_id") && !json.at("unk_id").is_null()) {
    unknown = json.at("unk_id").get<std::uint32_t>();
    if (*unknown >= scores.size())
      throw Error(ErrorKind::kCorrupt, fmt::format("unk_id {} has no token", *unknown));
  }
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unknown,
                                   json.value("byte_fallback", false));
}

}  // namespace trireme::data::detail
