// Text to token ids and back. Tokenizers are immutable and may be used by several threads at once.
//
// load_tokenizer() takes "bytes", the path of a Hugging Face tokenizer.json (or of a folder that has
// one), or a number: the vocabulary of files that hold tokens already.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocabulary_size() const = 0;

  // Appends the ids of `text`; with the special tokens of the file's template (such as a beginning
  // of text) if `special`. Bytes that are not UTF-8 become U+FFFD, except for "bytes".
  virtual void encode(std::string_view text, bool special,
                      std::vector<std::uint32_t>& ids) const = 0;

  // The text of `ids`; unknown ids have none. Without special tokens if `skip_special`.
  virtual std::string decode(std::span<const std::uint32_t> ids, bool skip_special) const = 0;

  virtual std::optional<std::uint32_t> id_of(std::string_view token) const = 0;

  // The token that ends a document, as far as its name says so (</s>, <|endoftext|>, ...).
  std::optional<std::uint32_t> end_of_text() const;

  // Differs between tokenizers that give different ids.
  virtual std::uint64_t fingerprint() const = 0;

  // False for a mere number: a vocabulary for files that hold tokens already.
  virtual bool has_text() const { return true; }

  // True where a file of text is a file of tokens.
  virtual bool one_token_per_byte() const { return false; }

  std::vector<std::uint32_t> encode(std::string_view text, bool special = false) const {
    std::vector<std::uint32_t> ids;
    encode(text, special, ids);
    return ids;
  }
};

// Throws Config for what is not there or not known, Corrupt for a damaged file.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name);

// Returns the tokenizer.json that a name stands for; empty for "bytes" and numbers.
std::filesystem::path tokenizer_file(const std::string& name);
// Makes a tokenizer of a tokenizer.json's text; `name` is for messages.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view json, const std::string& name);

}  // namespace trireme::data
