#include "trireme/data/tokenizer.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/base/text.hpp"

#include "data/tokenizer/hugging_face.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

namespace trireme::data {

namespace {

class Bytes final : public Tokenizer {
 public:
  std::int64_t vocabulary_size() const override { return 256; }
  void encode(std::string_view text, bool /*special*/,
              std::vector<std::uint32_t>& ids) const override {
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  }
  std::string decode(std::span<const std::uint32_t> ids, bool /*skip_special*/) const override {
    std::string text;
    for (const std::uint32_t id : ids) {
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
  std::optional<std::uint32_t> id_of(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token.front());
  }
  std::uint64_t fingerprint() const override { return stream_key(256, "bytes"); }
  bool one_token_per_byte() const override { return true; }
};

class OnlyAVocabulary final : public Tokenizer {
 public:
  explicit OnlyAVocabulary(std::int64_t size) : size_(size) {}
  std::int64_t vocabulary_size() const override { return size_; }
  void encode(std::string_view, bool, std::vector<std::uint32_t>&) const override { refuse(); }
  std::string decode(std::span<const std::uint32_t>, bool) const override { refuse(); }
  std::optional<std::uint32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::uint64_t fingerprint() const override {
    return stream_key(static_cast<std::uint64_t>(size_), "vocabulary");
  }
  bool has_text() const override { return false; }

 private:
  [[noreturn]] void refuse() const {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("tokenizer {} is only the size of a vocabulary and knows no text", size_),
        "set data.tokenizer: bytes, or the path of a tokenizer.json");
  }
  std::int64_t size_;
};

std::optional<std::int64_t> number_in(std::string_view name) {
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (failed != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::uint32_t> Tokenizer::end_of_text() const {
  static constexpr std::array<std::string_view, 6> kNames{
      "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]"};
  for (const std::string_view name : kNames) {
    if (const auto id = id_of(name)) return id;
  }
  return std::nullopt;
}

std::filesystem::path tokenizer_file(const std::string& name) {
  if (name == "bytes" || number_in(name)) return {};
  const std::filesystem::path path(name);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return path / "tokenizer.json";
  return std::filesystem::exists(path, ignored) ? path : std::filesystem::path();
}

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view json, const std::string& name) {
  return detail::parse_hugging_face(json, name);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<const Bytes>();
  if (const auto size = number_in(name)) {
    if (*size < 1 || *size > std::int64_t{1} << 31) {
      throw Error(ErrorKind::kConfig, fmt::format("{} is no size of a vocabulary", *size));
    }
    return std::make_shared<const OnlyAVocabulary>(*size);
  }
  if (const auto file = tokenizer_file(name); !file.empty()) return detail::load_hugging_face(file);
  const std::array<std::string, 1> known{"bytes"};
  throw Error(ErrorKind::kConfig, fmt::format("there is no tokenizer '{}'", name),
              nearest(name, known)
                  ? "did you mean 'bytes'?"
                  : "there is 'bytes', the path of a tokenizer.json or of a folder with one, and a "
                    "number for files of tokens");
}

}  // namespace trireme::data
