// The "added_tokens" of a tokenizer.json: tokens that are found in the text before anything is cut.
#pragma once

#include "data/tokenizer/normalizer.hpp"
#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::data::detail {

struct AddedToken {
  std::uint32_t id = 0;
  std::string content;
  std::string wanted;  // what is looked for: the content, normalized or not
  bool special = false;
  bool normalized = false;   // looked for in normalized text
  bool single_word = false;  // only between what are no letters
  bool strip_left = false;   // with the spaces before it
  bool strip_right = false;
};

// A stretch of text, which is a token or not.
struct Stretch {
  std::string_view text;
  std::optional<std::uint32_t> token;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Throws Corrupt for what is malformed.
  AddedTokens(const nlohmann::json& json, const Normalizer& normalizer);

  const std::vector<AddedToken>& all() const { return tokens_; }
  const AddedToken* with_id(std::uint32_t id) const;

  // Cuts at the tokens that are looked for in normalized text, or at the others.
  std::vector<Stretch> split(std::string_view text, bool normalized) const;

 private:
  // Tokens by the byte that they begin with, the longest first.
  using ByFirst = std::array<std::vector<std::uint32_t>, 256>;

  const AddedToken* longest_at(std::string_view text, std::size_t at, bool normalized) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::uint32_t, std::size_t> by_id_;
  std::array<ByFirst, 2> by_first_;
  std::array<std::string, 2> firsts_;  // the bytes with which tokens begin
};

}  // namespace trireme::data::detail
