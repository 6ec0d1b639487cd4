#include "data/tokenizer/decoder.hpp"

#include "trireme/base/error.hpp"

#include "data/tokenizer/normalizer.hpp"
#include "data/tokenizer/subword.hpp"
#include "data/tokenizer/unicode.hpp"
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <optional>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;
using Tokens = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// A decoder that treats each token alone.
Decoder each(std::function<std::string(std::string, bool first)> one) {
  return [one = std::move(one)](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = one(std::move(tokens[i]), i == 0);
    return tokens;
  };
}

std::string fused(const Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

Tokens byte_level(const Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
  return {to_utf8(bytes)};
}

std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, failed] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (failed != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

// Bytes that follow each other become text, or each U+FFFD if they are none.
Tokens byte_fallback(const Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (!bytes.empty() && is_utf8(bytes)) {
      out.push_back(bytes);
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes.push_back(*byte);
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

Decoder make_strip(const Json& json) {
  const auto content = json.at("content").get<std::string>();
  const auto start = json.value("start", std::size_t{0});
  const auto stop = json.value("stop", std::size_t{0});
  return each([=](std::string token, bool) {
    if (content.empty()) return token;
    for (std::size_t i = 0; i < start && token.starts_with(content); ++i)
      token.erase(0, content.size());
    for (std::size_t i = 0; i < stop && token.ends_with(content); ++i)
      token.erase(token.size() - content.size());
    return token;
  });
}

void clean_up(std::string& text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kSteps{
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [from, to] : kSteps) replace_all(text, from, to);
}

Decoder make_word_piece(const Json& json) {
  const auto prefix = json.value("prefix", std::string("##"));
  const bool cleanup = json.value("cleanup", true);
  return each([=](std::string token, bool first) {
    if (!first && !prefix.empty() && token.starts_with(prefix)) {
      token.erase(0, prefix.size());
    } else if (!first) {
      token.insert(0, " ");
    }
    if (cleanup) clean_up(token);
    return token;
  });
}

Decoder make_metaspace(const Json& json) {
  const auto mark = json.at("replacement").get<std::string>();
  std::string scheme = json.value("add_prefix_space", true) ? "always" : "never";
  if (json.contains("prepend_scheme")) scheme = json.at("prepend_scheme").get<std::string>();
  const std::string at_first = scheme == "never" ? " " : "";
  return each([=](std::string token, bool first) {
    replace_all(token, mark, first ? at_first : " ");
    return token;
  });
}

Decoder make_replace(const Json& json) {
  Normalizer replace = make_normalizer(json);
  return each([replace](const std::string& token, bool) { return replace(token); });
}

Decoder make_sequence(const Json& json) {
  std::vector<Decoder> all;
  for (const Json& one : json.at("decoders")) {
    if (Decoder made = make_decoder(one)) all.push_back(std::move(made));
  }
  return [all](Tokens tokens) {
    for (const Decoder& one : all) tokens = one(std::move(tokens));
    return tokens;
  };
}

Decoder make_bpe(const Json& json) {
  const auto suffix = json.value("suffix", std::string("</w>"));
  return [suffix](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    return tokens;
  };
}

}  // namespace

Decoder make_decoder(const Json& json) {
  if (json.is_null()) return {};
  const auto type = json.at("type").get<std::string>();
  if (type == "Sequence") return make_sequence(json);
  if (type == "ByteLevel") return byte_level;
  if (type == "ByteFallback") return byte_fallback;
  if (type == "Fuse") return [](const Tokens& tokens) { return Tokens{fused(tokens)}; };
  if (type == "Strip") return make_strip(json);
  if (type == "Replace") return make_replace(json);
  if (type == "WordPiece") return make_word_piece(json);
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "BPEDecoder") return make_bpe(json);
  throw_unknown("decoder", type,
                "BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip "
                "and WordPiece");
}

}  // namespace trireme::data::detail
