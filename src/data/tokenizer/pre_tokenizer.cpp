#include "data/tokenizer/pre_tokenizer.hpp"

#include "trireme/base/error.hpp"

#include "data/tokenizer/normalizer.hpp"
#include "data/tokenizer/regex.hpp"
#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <utility>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;

// What becomes of a match, as "behavior" says.
enum class Behavior { kRemoved, kIsolated, kWithPrevious, kWithNext, kContiguous };

Behavior behavior_of(const std::string& name) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kWithPrevious;
  if (name == "MergedWithNext") return Behavior::kWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw_unknown("behavior", name,
                "Contiguous, Isolated, MergedWithNext, MergedWithPrevious and Removed");
}

struct Part {
  std::size_t begin;
  std::size_t end;
  bool matched;
};

// Applies a behavior to parts that follow each other and cover the text.
void emit(Piece piece, const std::vector<Part>& parts, Behavior behavior, Pieces& out) {
  const auto add = [&](std::size_t begin, std::size_t end) {
    out.add(piece.text.substr(begin, end - begin), piece.first && begin == 0);
  };
  std::size_t begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const bool last = i + 1 == parts.size();
    switch (behavior) {
      case Behavior::kRemoved:
        if (!part.matched) add(part.begin, part.end);
        break;
      case Behavior::kIsolated:
        add(part.begin, part.end);
        break;
      case Behavior::kWithPrevious:
        // What was gathered ends with a match that has something before it to join.
        if (part.matched || last || !parts[i + 1].matched) {
          add(begin, part.end);
          begin = part.end;
        }
        break;
      case Behavior::kWithNext:
        if (!part.matched || last || parts[i + 1].matched) {
          add(begin, part.end);
          begin = part.end;
        }
        break;
      case Behavior::kContiguous:
        if (last || parts[i + 1].matched != part.matched) {
          add(begin, part.end);
          begin = part.end;
        }
        break;
    }
  }
}

// Matches and what lies between them.
class AtMatches final : public PreTokenizer {
 public:
  AtMatches(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(Piece piece, Pieces& out) const override {
    std::vector<Part> parts;
    std::size_t done = 0;
    regex_.each_match(piece.text, [&](std::size_t begin, std::size_t end) {
      if (begin > done) parts.push_back({done, begin, invert_});
      parts.push_back({begin, end, !invert_});
      done = end;
    });
    if (done < piece.text.size()) parts.push_back({done, piece.text.size(), invert_});
    emit(piece, parts, behavior_, out);
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

// Every character of a kind is a match of its own.
class AtCharacters final : public PreTokenizer {
 public:
  AtCharacters(std::function<bool(char32_t)> matches, Behavior behavior)
      : matches_(std::move(matches)), behavior_(behavior) {}

  void split(Piece piece, Pieces& out) const override {
    std::vector<Part> parts;
    std::size_t done = 0;
    for (std::size_t at = 0; at < piece.text.size();) {
      const auto [code, size] = character_at(piece.text, at);
      if (matches_(code)) {
        if (at > done) parts.push_back({done, at, false});
        parts.push_back({at, at + size, true});
        done = at + size;
      }
      at += size;
    }
    if (done < piece.text.size()) parts.push_back({done, piece.text.size(), false});
    emit(piece, parts, behavior_, out);
  }

 private:
  std::function<bool(char32_t)> matches_;
  Behavior behavior_;
};

class Scanned final : public PreTokenizer {
 public:
  explicit Scanned(const ScanRules& rules) : rules_(rules) {}
  void split(Piece piece, Pieces& out) const override {
    scan(piece.text, rules_, piece.first, out);
  }

 private:
  ScanRules rules_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool prefix, bool cut) : prefix_(prefix), cut_(cut) {}

  void split(Piece piece, Pieces& out) const override {
    if (prefix_ && !piece.text.starts_with(' '))
      piece.text = out.changed.emplace_back(" " + std::string(piece.text));
    if (cut_) {
      scan(piece.text, kGpt2Rules, piece.first, out);
    } else {
      out.add(piece.text, piece.first);
    }
  }

 private:
  bool prefix_;
  bool cut_;
};

class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string mark, Prepend prepend, bool cut)
      : mark_(std::move(mark)), prepend_(prepend), cut_(cut) {}

  void split(Piece piece, Pieces& out) const override {
    std::string text;
    for (const char c : piece.text) {
      if (c == ' ') {
        text.append(mark_);
      } else {
        text.push_back(c);
      }
    }
    const bool wanted =
        prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.first);
    if (wanted && !text.starts_with(mark_)) text.insert(0, mark_);
    const std::string_view whole = out.changed.emplace_back(std::move(text));
    if (!cut_) return out.add(whole, piece.first);
    // A mark begins each piece.
    std::size_t begin = 0;
    while (begin < whole.size()) {
      const std::size_t next = std::min(whole.find(mark_, begin + 1), whole.size());
      out.add(whole.substr(begin, next - begin), piece.first && begin == 0);
      begin = next;
    }
  }

 private:
  std::string mark_;
  Prepend prepend_;
  bool cut_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> all) : all_(std::move(all)) {}

  void split(Piece piece, Pieces& out) const override {
    std::vector<Piece> now{piece};
    for (const auto& one : all_) {
      Pieces next;
      std::swap(next.changed, out.changed);
      for (const Piece& part : now) one->split(part, next);
      std::swap(next.changed, out.changed);
      now = std::move(next.all);
    }
    out.all.insert(out.all.end(), now.begin(), now.end());
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> all_;
};

std::unique_ptr<const PreTokenizer> at_class(std::uint8_t classes, Behavior behavior) {
  return std::make_unique<AtCharacters>(
      [classes](char32_t c) { return (classes_of(c) & classes) != 0; }, behavior);
}

std::unique_ptr<const PreTokenizer> make_metaspace(const Json& json) {
  std::string scheme = json.value("add_prefix_space", true) ? "always" : "never";
  if (json.contains("prepend_scheme")) scheme = json.at("prepend_scheme").get<std::string>();
  const auto prepend = scheme == "always"  ? Metaspace::Prepend::kAlways
                       : scheme == "first" ? Metaspace::Prepend::kFirst
                                           : Metaspace::Prepend::kNever;
  if (scheme != "always" && scheme != "first" && scheme != "never")
    throw_unknown("prepend_scheme", scheme, "always, first and never");
  const auto mark = json.at("replacement").get<std::string>();
  if (mark.empty()) throw Error(ErrorKind::kCorrupt, "the replacement of Metaspace is empty");
  return std::make_unique<Metaspace>(mark, prepend, json.value("split", true));
}

std::unique_ptr<const PreTokenizer> make_split(const Json& json) {
  const Behavior behavior = behavior_of(json.at("behavior").get<std::string>());
  const bool invert = json.value("invert", false);
  const Json& pattern = json.at("pattern");
  const bool covers_all =
      (behavior == Behavior::kIsolated && !invert) || (behavior == Behavior::kRemoved && invert);
  if (covers_all && pattern.contains("Regex")) {
    const auto regex = pattern.at("Regex").get<std::string>();
    if (regex == kGpt2Pattern) return std::make_unique<Scanned>(kGpt2Rules);
    if (regex == kLlama3Pattern) return std::make_unique<Scanned>(kLlama3Rules);
    if (regex == kQwen2Pattern) return std::make_unique<Scanned>(kQwen2Rules);
  }
  return std::make_unique<AtMatches>(pattern_of(pattern), behavior, invert);
}

std::unique_ptr<const PreTokenizer> make_sequence(const Json& json) {
  std::vector<std::unique_ptr<const PreTokenizer>> all;
  const Json& parts = json.at("pretokenizers");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_byte_level(parts[i]) && i + 1 < parts.size()) {
      throw Error(ErrorKind::kConfig,
                  "a pre-tokenizer that follows ByteLevel is not understood here");
    }
    if (auto made = make_pre_tokenizer(parts[i])) all.push_back(std::move(made));
  }
  return std::make_unique<Sequence>(std::move(all));
}

std::unique_ptr<const PreTokenizer> make_bert() {
  std::vector<std::unique_ptr<const PreTokenizer>> all;
  all.push_back(at_class(kSpace, Behavior::kRemoved));
  all.push_back(at_class(kPunctuation, Behavior::kIsolated));
  return std::make_unique<Sequence>(std::move(all));
}

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& json) {
  if (json.is_null()) return nullptr;
  const auto type = json.at("type").get<std::string>();
  if (type == "Sequence") return make_sequence(json);
  if (type == "Split") return make_split(json);
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "BertPreTokenizer") return make_bert();
  if (type == "WhitespaceSplit") return at_class(kSpace, Behavior::kRemoved);
  if (type == "Whitespace") {
    return std::make_unique<AtMatches>(
        Regex(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\s]+)"),
        Behavior::kRemoved, true);
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(json.value("add_prefix_space", true),
                                       json.value("use_regex", true));
  }
  if (type == "Digits") {
    return at_class(kNumber, json.value("individual_digits", false) ? Behavior::kIsolated
                                                                    : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    return at_class(kPunctuation, behavior_of(json.value("behavior", std::string("Isolated"))));
  }
  throw_unknown("pre_tokenizer", type,
                "BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, "
                "Whitespace and WhitespaceSplit");
}

bool is_byte_level(const Json& json) {
  if (json.is_null()) return false;
  if (json.at("type") == "ByteLevel") return true;
  if (json.at("type") != "Sequence") return false;
  for (const Json& one : json.at("pretokenizers")) {
    if (is_byte_level(one)) return true;
  }
  return false;
}

}  // namespace trireme::data::detail
