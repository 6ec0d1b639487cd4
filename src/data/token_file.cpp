#include "data/token_file.hpp"

#include "data/packed_tokens.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace trireme::data::detail {

namespace {

// Formats without documents: a header, or none, and tokens.
class FlatTokens final : public TokenFile {
 public:
  FlatTokens(PackedTokens tokens, std::int64_t vocabulary)
      : tokens_(std::move(tokens)), vocabulary_(vocabulary) {}

  const std::filesystem::path& path() const override { return tokens_.path(); }
  std::uint64_t num_tokens() const override { return tokens_.count(); }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::string details() const override { return std::string(name_of(tokens_.type())); }
  void read(std::uint64_t first, std::span<std::int64_t> tokens) const override {
    tokens_.read(first, tokens);
  }

 private:
  PackedTokens tokens_;
  std::int64_t vocabulary_;
};

class TokensInMemory final : public TokenFile {
 public:
  TokensInMemory(std::filesystem::path path, std::vector<std::uint32_t> tokens,
                 std::vector<std::uint64_t> document_ends, std::int64_t vocabulary)
      : path_(std::move(path)),
        tokens_(std::move(tokens)),
        document_ends_(std::move(document_ends)),
        vocabulary_(vocabulary) {}

  const std::filesystem::path& path() const override { return path_; }
  std::uint64_t num_tokens() const override { return tokens_.size(); }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::string details() const override { return "tokenized when opened"; }
  std::span<const std::uint64_t> document_ends() const override { return document_ends_; }
  void read(std::uint64_t first, std::span<std::int64_t> tokens) const override {
    ensure(first <= tokens_.size() && tokens.size() <= tokens_.size() - first,
           "tokens outside the file");
    std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(first), tokens.size(),
                tokens.begin());
  }

 private:
  std::filesystem::path path_;
  std::vector<std::uint32_t> tokens_;
  std::vector<std::uint64_t> document_ends_;
  std::int64_t vocabulary_;
};

[[noreturn]] void corrupt(std::string why, std::string hint = {}) {
  throw Error(ErrorKind::kCorrupt, std::move(why), std::move(hint));
}

// Header of llm.c: 256 int32, of which three mean something.
constexpr std::size_t kLlmCHeader = 1024;
struct LlmCKind {
  std::int32_t magic;
  std::int32_t version;
  TokenType type;
};
constexpr std::array<LlmCKind, 2> kLlmCKinds{
    {{20240520, 1, TokenType::kUint16}, {20240801, 7, TokenType::kUint32}}};

}  // namespace

std::shared_ptr<const TokenFile> open_bytes(const std::filesystem::path& path) {
  InputFile file(path);
  const std::uint64_t size = file.size();
  return std::make_shared<const FlatTokens>(
      PackedTokens(std::move(file), TokenType::kUint8, 0, size), 256);
}

std::shared_ptr<const TokenFile> open_raw(const std::filesystem::path& path, bool wide) {
  InputFile file(path);
  const TokenType type = wide ? TokenType::kUint32 : TokenType::kUint16;
  const std::uint64_t size = file.size();
  if (size % size_of(type) != 0) {
    corrupt(
        fmt::format("its size {} is not a multiple of {}, the size of a token; the last one "
                    "begins at offset {}",
                    size, size_of(type), size / size_of(type) * size_of(type)));
  }
  return std::make_shared<const FlatTokens>(
      PackedTokens(std::move(file), type, 0, size / size_of(type)), 0);
}

std::shared_ptr<const TokenFile> open_llm_c(const std::filesystem::path& path) {
  InputFile file(path);
  if (file.size() < kLlmCHeader) {
    corrupt(fmt::format("truncated: it ends at offset {}, inside the header of {} bytes",
                        file.size(), kLlmCHeader));
  }
  std::array<std::int32_t, 3> header{};
  file.read(0, std::as_writable_bytes(std::span(header)));
  const auto [magic, version, count] = header;
  const auto kind = std::ranges::find(kLlmCKinds, magic, &LlmCKind::magic);
  if (kind == kLlmCKinds.end()) {
    corrupt(fmt::format("offset 0: the magic number {} is not llm.c's: {} (GPT-2) or {} (Llama 3)",
                        magic, kLlmCKinds[0].magic, kLlmCKinds[1].magic));
  }
  if (version != kind->version) {
    corrupt(fmt::format("offset 4: version {} is unknown; with this magic number it is {}", version,
                        kind->version));
  }
  if (count < 0) corrupt(fmt::format("offset 8: the count {} is negative", count));
  const auto tokens = static_cast<std::uint64_t>(count);
  const std::uint64_t promised = kLlmCHeader + tokens * size_of(kind->type);
  if (file.size() < promised) {
    corrupt(fmt::format("truncated: {} tokens need {} bytes, but it ends at offset {}", tokens,
                        promised, file.size()));
  }
  if (file.size() > promised) {
    corrupt(fmt::format("size mismatch: {} tokens end at offset {}, but it has {} bytes", tokens,
                        promised, file.size()));
  }
  return std::make_shared<const FlatTokens>(
      PackedTokens(std::move(file), kind->type, kLlmCHeader, tokens), 0);
}

std::shared_ptr<const TokenFile> tokens_in_memory(std::filesystem::path path,
                                                  std::vector<std::uint32_t> tokens,
                                                  std::vector<std::uint64_t> document_ends,
                                                  std::int64_t vocabulary) {
  return std::make_shared<const TokensInMemory>(std::move(path), std::move(tokens),
                                                std::move(document_ends), vocabulary);
}

std::shared_ptr<const TokenFile> open_token_file(const std::filesystem::path& path,
                                                 const std::string& format) {
  if (format == "text") return open_bytes(path);
  if (format == "megatron") return open_megatron(path);
  if (format == "llm.c") return open_llm_c(path);
  if (format == "nanogpt") return open_raw(path, false);
  if (format == "uint32") return open_raw(path, true);
  if (format == "tokens") return open_parts(path);
  throw Error(ErrorKind::kInternal, fmt::format("'{}' is no format of tokens", format));
}

}  // namespace trireme::data::detail
