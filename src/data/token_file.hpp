// One open source: where its tokens are, how to read a stretch of them, and where documents end.
// The formats that people have are told apart here and checked in full when they are opened: every
// length in a file is hostile until it fits the file's size, and what is damaged is named with its
// offset. Reading a stretch touches only that stretch.
#pragma once

#include "trireme/base/error.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::data::detail {

class TokenFile {
 public:
  virtual ~TokenFile() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual std::uint64_t num_tokens() const = 0;

  // Writes the tokens first, first + 1, ...; throws Io when they cannot all be read and Corrupt for
  // a negative id. May be called from several threads.
  virtual void read(std::uint64_t first, std::span<std::int64_t> tokens) const = 0;

  // Ends of the documents in tokens, ascending, none empty, the last one num_tokens(). Empty where
  // the format does not know: then the whole file is one document.
  virtual std::span<const std::uint64_t> document_ends() const { return {}; }

  // Tokens of the tokenizer that wrote the file; 0 where the format does not say.
  virtual std::int64_t vocabulary() const { return 0; }

  // What the file says of itself, such as "uint16" or "3 parts, uint16".
  virtual std::string details() const = 0;
};

// Opens a token file of `format`: "text" (every byte is a token), "megatron" (the path of .idx,
// .bin or their common prefix), "llm.c", "nanogpt" (bare uint16), "uint32" (bare) or "tokens" (a
// folder of our own parts). Throws Config for a file that cannot be opened and
// Corrupt for one that is not what it should be, without the path of the file in the message.
std::shared_ptr<const TokenFile> open_token_file(const std::filesystem::path& path,
                                                 const std::string& format);

std::shared_ptr<const TokenFile> open_bytes(const std::filesystem::path& path);
std::shared_ptr<const TokenFile> open_llm_c(const std::filesystem::path& path);
std::shared_ptr<const TokenFile> open_raw(const std::filesystem::path& path, bool wide);
std::shared_ptr<const TokenFile> open_megatron(const std::filesystem::path& path);
std::shared_ptr<const TokenFile> open_parts(const std::filesystem::path& folder);

// Tokens in memory, as many as fit there comfortably.
std::shared_ptr<const TokenFile> tokens_in_memory(std::filesystem::path path,
                                                  std::vector<std::uint32_t> tokens,
                                                  std::vector<std::uint64_t> document_ends,
                                                  std::int64_t vocabulary);

// What the .idx of a Megatron file says. Sequence s has lengths[s] tokens and they lie one behind
// the other; document d is made of the sequences [documents[d], documents[d + 1]).
struct MegatronIndex {
  std::string type;  // "uint16", ...
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> documents;
};
MegatronIndex read_megatron_index(const std::filesystem::path& idx);

}  // namespace trireme::data::detail
