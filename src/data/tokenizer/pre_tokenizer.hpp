// The "pre_tokenizer" of a tokenizer.json: cuts text into pieces that the model sees one by one.
// The patterns of GPT-2, of Llama 3 and of Qwen are scanned by hand, others by PCRE2.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data::detail {

struct Piece {
  std::string_view text;
  bool first = false;  // whether it begins where the whole text begins
};

// Pieces, and the text of those that are no part of what was given.
struct Pieces {
  std::vector<Piece> all;
  std::deque<std::string> changed;

  void add(std::string_view text, bool first) {
    if (!text.empty()) all.push_back({text, first});
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Appends the pieces of `piece` to `out`, none of them empty.
  virtual void split(Piece piece, Pieces& out) const = 0;
};

// Null for null. Throws Corrupt for what is malformed and Config for a type that is not known.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const nlohmann::json& json);

// Whether it writes bytes as characters, as byte-level models do.
bool is_byte_level(const nlohmann::json& json);

// How the hand-written scanner cuts; see the patterns in the source.
struct ScanRules {
  bool any_case = false;      // 's and 'S
  bool any_prefix = false;    // one character of punctuation or space may stand before letters
  unsigned most_digits = 0;   // numbers are cut after so many; 0: never, and a space may be first
  bool own_newlines = false;  // newlines end what they follow
};
inline constexpr ScanRules kGpt2Rules{};
inline constexpr ScanRules kLlama3Rules{true, true, 3, true};
inline constexpr ScanRules kQwen2Rules{true, true, 1, true};
// Cuts valid UTF-8.
void scan(std::string_view text, const ScanRules& rules, bool first, Pieces& out);

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace trireme::data::detail
