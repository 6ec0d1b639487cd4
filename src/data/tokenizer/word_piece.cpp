// WordPiece: of each word the longest token from the left, or the whole word is unknown.
#include "trireme/base/error.hpp"

#include "data/tokenizer/subword.hpp"
#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;

class WordPiece final : public Subword {
 public:
  WordPiece(Vocabulary vocabulary, std::uint32_t unknown, std::string prefix, std::size_t most)
      : Subword(std::move(vocabulary)), unknown_(unknown), prefix_(std::move(prefix)), most_(most) {
    for (std::uint32_t id = 0; id < vocabulary_.end(); ++id) {
      if (const std::string* token = vocabulary_.token(id))
        longest_ = std::max(longest_, token->size());
    }
  }

  void encode(std::string_view piece, std::vector<std::uint32_t>& ids) const override {
    const std::size_t before = ids.size();
    std::size_t characters = 0;
    for (const char c : piece) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    bool known = characters <= most_;
    for (std::size_t at = 0; known && at < piece.size();) {
      const std::size_t size = longest_at(piece, at, ids);
      known = size > 0;
      at += size;
    }
    if (known) return;
    ids.resize(before);
    ids.push_back(unknown_);
  }

 private:
  // Appends the longest token at `at` and returns its bytes in the piece, or 0.
  std::size_t longest_at(std::string_view piece, std::size_t at,
                         std::vector<std::uint32_t>& ids) const {
    std::string token = at == 0 ? std::string() : prefix_;
    const std::size_t front = token.size();
    token.append(piece.substr(at, longest_));
    for (std::size_t end = token.size(); end > front;) {
      if (const auto id = vocabulary_.find(std::string_view(token).substr(0, end))) {
        ids.push_back(*id);
        return end - front;
      }
      --end;
      while (end > front && (static_cast<unsigned char>(token[end]) & 0xc0) == 0x80) --end;
    }
    return 0;
  }

  std::uint32_t unknown_;
  std::string prefix_;
  std::size_t most_;
  std::size_t longest_ = 0;
};

}  // namespace

std::unique_ptr<const Subword> make_word_piece(const Json& json, Vocabulary vocabulary) {
  const auto unknown = json.value("unk_token", std::string("[UNK]"));
  const auto id = vocabulary.find(unknown);
  if (!id) throw Error(ErrorKind::kCorrupt, fmt::format("unk_token '{}' has no id", unknown));
  return std::make_unique<WordPiece>(std::move(vocabulary), *id,
                                     json.value("continuing_subword_prefix", std::string("##")),
                                     json.value("max_input_chars_per_word", std::size_t{100}));
}

}  // namespace trireme::data::detail
