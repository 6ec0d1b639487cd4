#include "data/tokenizer/subword.hpp"

#include "trireme/base/error.hpp"

#include "data/tokenizer/normalizer.hpp"
#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kMostTokens = 1U << 25;

bool is_printable_byte(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

std::array<char32_t, 256> characters_of_bytes() {
  std::array<char32_t, 256> all{};
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) all[byte] = is_printable_byte(byte) ? byte : next++;
  return all;
}

const std::array<char32_t, 256> kCharacters = characters_of_bytes();

Vocabulary vocabulary_of(const Json& json) {
  Vocabulary vocabulary;
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMostTokens)
      throw Error(ErrorKind::kCorrupt, fmt::format("the id of '{}' is no small number", token));
    vocabulary.add(token, id.get<std::uint32_t>());
  }
  return vocabulary;
}

}  // namespace

void Vocabulary::add(std::string token, std::uint32_t id) {
  if (id >= tokens_.size()) {
    tokens_.resize(std::size_t{id} + 1);
    present_.resize(std::size_t{id} + 1);
  }
  tokens_[id] = token;
  present_[id] = true;
  ids_[std::move(token)] = id;
}

std::optional<std::uint32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::token(std::uint32_t id) const {
  return id < tokens_.size() && present_[id] ? &tokens_[id] : nullptr;
}

char32_t character_of_byte(unsigned char byte) { return kCharacters[byte]; }

std::optional<unsigned char> byte_of_character(char32_t c) {
  if (c < 256) {
    if (is_printable_byte(c)) return static_cast<unsigned char>(c);
    return std::nullopt;
  }
  if (c < 256 + 33) return static_cast<unsigned char>(c - 256);
  if (c < 256 + 67) return static_cast<unsigned char>(c - 256 - 33 + 0x7f);
  if (c == 256 + 67) return static_cast<unsigned char>(0xad);
  return std::nullopt;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const auto [code, size] = character_at(token, at);
    const auto byte = byte_of_character(code);
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
    at += size;
  }
  return bytes;
}

std::vector<std::optional<std::uint32_t>> byte_tokens(const Vocabulary& vocabulary) {
  std::vector<std::optional<std::uint32_t>> ids;
  for (unsigned byte = 0; byte < 256; ++byte)
    ids.push_back(vocabulary.find(fmt::format("<0x{:02X}>", byte)));
  return ids;
}

std::unique_ptr<const Subword> make_subword(const Json& json, bool byte_level) {
  // Files from before the type was written hold merges, or not.
  std::string type = json.contains("merges") ? "BPE" : "WordPiece";
  if (json.contains("type")) type = json.at("type").get<std::string>();
  if (type == "BPE") return make_bpe(json, vocabulary_of(json.at("vocab")), byte_level);
  if (byte_level)
    throw Error(ErrorKind::kConfig, fmt::format("ByteLevel with a {} model is not read", type));
  if (type == "WordPiece") return make_word_piece(json, vocabulary_of(json.at("vocab")));
  if (type == "Unigram") return make_unigram(json);
  throw_unknown("model", type, "BPE, Unigram and WordPiece");
}

}  // namespace trireme::data::detail
