#include "data/tokenizer/added_tokens.hpp"

#include "trireme/base/error.hpp"

#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMostIds = std::uint64_t{1} << 25;

AddedToken token_of(const Json& json, const Normalizer& normalizer) {
  AddedToken token;
  const auto id = json.at("id").get<std::uint64_t>();
  token.content = json.at("content").get<std::string>();
  if (id >= kMostIds)
    throw Error(ErrorKind::kCorrupt,
                fmt::format("the id of '{}' is no small number", token.content));
  token.id = static_cast<std::uint32_t>(id);
  token.special = json.value("special", false);
  token.normalized = json.value("normalized", !token.special);
  token.single_word = json.value("single_word", false);
  token.strip_left = json.value("lstrip", false);
  token.strip_right = json.value("rstrip", false);
  token.wanted = token.normalized && normalizer ? normalizer(token.content) : token.content;
  return token;
}

bool is_word_before(std::string_view text, std::size_t end) {
  return end > 0 && (classes_of(character_before(text, end).code) & kWord) != 0;
}
bool is_word_at(std::string_view text, std::size_t at) {
  return at < text.size() && (classes_of(character_at(text, at).code) & kWord) != 0;
}

std::size_t before_spaces(std::string_view text, std::size_t end) {
  while (end > 0) {
    const auto [code, size] = character_before(text, end);
    if ((classes_of(code) & kSpace) == 0) break;
    end -= size;
  }
  return end;
}

std::size_t after_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const auto [code, size] = character_at(text, at);
    if ((classes_of(code) & kSpace) == 0) break;
    at += size;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const Json& json, const Normalizer& normalizer) {
  if (json.is_null()) return;
  for (const Json& one : json) tokens_.push_back(token_of(one, normalizer));
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    by_id_[token.id] = i;
    if (token.wanted.empty()) continue;
    auto& list =
        by_first_[token.normalized ? 1 : 0][static_cast<unsigned char>(token.wanted.front())];
    list.push_back(static_cast<std::uint32_t>(i));
    std::string& firsts = firsts_[token.normalized ? 1 : 0];
    if (firsts.find(token.wanted.front()) == std::string::npos)
      firsts.push_back(token.wanted.front());
  }
  for (ByFirst& lists : by_first_) {
    for (auto& list : lists) {
      std::ranges::stable_sort(list, [&](auto a, auto b) {
        return tokens_[a].wanted.size() > tokens_[b].wanted.size();
      });
    }
  }
}

const AddedToken* AddedTokens::with_id(std::uint32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at,
                                          bool normalized) const {
  const auto first = static_cast<unsigned char>(text[at]);
  for (const std::uint32_t i : by_first_[normalized ? 1 : 0][first]) {
    if (text.substr(at).starts_with(tokens_[i].wanted)) return &tokens_[i];
  }
  return nullptr;
}

std::vector<Stretch> AddedTokens::split(std::string_view text, bool normalized) const {
  std::vector<Stretch> out;
  const std::string& firsts = firsts_[normalized ? 1 : 0];
  std::size_t done = 0;
  for (std::size_t at = text.find_first_of(firsts); at < text.size();
       at = text.find_first_of(firsts, at)) {
    const AddedToken* token = longest_at(text, at, normalized);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + token->wanted.size();
    at = end;
    if (token->single_word && (is_word_before(text, begin) || is_word_at(text, end))) continue;
    if (token->strip_left) begin = std::max(before_spaces(text, begin), done);
    if (token->strip_right) end = after_spaces(text, end);
    at = std::max(at, end);
    if (begin > done) out.push_back({text.substr(done, begin - done), std::nullopt});
    out.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) out.push_back({text.substr(done), std::nullopt});
  return out;
}

}  // namespace trireme::data::detail
