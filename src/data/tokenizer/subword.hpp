// The "model" of a tokenizer.json: pieces to ids. Names of tokens are kept as the file has them;
// byte-level models see bytes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::data::detail {

class Vocabulary {
 public:
  void add(std::string token, std::uint32_t id);
  std::optional<std::uint32_t> find(std::string_view token) const;
  // Null for an id without a token.
  const std::string* token(std::uint32_t id) const;
  std::uint32_t end() const { return static_cast<std::uint32_t>(tokens_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::string> tokens_;
  std::vector<bool> present_;
};

class Subword {
 public:
  virtual ~Subword() = default;
  virtual void encode(std::string_view piece, std::vector<std::uint32_t>& ids) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit Subword(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  Vocabulary vocabulary_;
};

// Throws Corrupt for what is malformed and Config for a type that is not known.
std::unique_ptr<const Subword> make_subword(const nlohmann::json& json, bool byte_level);

std::unique_ptr<const Subword> make_bpe(const nlohmann::json& json, Vocabulary vocabulary,
                                        bool byte_level);
std::unique_ptr<const Subword> make_word_piece(const nlohmann::json& json, Vocabulary vocabulary);
std::unique_ptr<const Subword> make_unigram(const nlohmann::json& json);

// The character by which byte-level files write a byte, and back.
char32_t character_of_byte(unsigned char byte);
std::optional<unsigned char> byte_of_character(char32_t c);
// Nothing when a character stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

// The ids of <0x00> to <0xFF>; nothing for those that are missing.
std::vector<std::optional<std::uint32_t>> byte_tokens(const Vocabulary& vocabulary);

}  // namespace trireme::data::detail
