#include "data/tokenizer/normalizer.hpp"

#include "trireme/base/error.hpp"

#include "data/tokenizer/regex.hpp"
#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <vector>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;

// The characters of `text` that `keep` wants.
template <class Keep>
std::string filtered(std::string_view text, Keep keep) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    if (keep(code)) out.append(text.substr(at, size));
    at += size;
  }
  return out;
}

bool is_chinese(char32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

std::string cleaned(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    const std::uint8_t classes = classes_of(code);
    const bool blank = code == '\t' || code == '\n' || code == '\r' || (classes & kSpace) != 0;
    const bool gone = code == 0 || code == 0xfffd ||
                      ((classes & kOther) != 0 && code != '\t' && code != '\n' && code != '\r');
    if (!gone) out.append(blank ? std::string_view(" ") : text.substr(at, size));
    at += size;
  }
  return out;
}

std::string with_spaces_around_chinese(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    const bool apart = is_chinese(code);
    if (apart) out.push_back(' ');
    out.append(text.substr(at, size));
    if (apart) out.push_back(' ');
    at += size;
  }
  return out;
}

std::string without_accents(std::string_view text) {
  return filtered(normalized(text, NormalForm::kNfd),
                  [](char32_t c) { return (classes_of(c) & kMarkNonspacing) == 0; });
}

Normalizer make_bert(const Json& json) {
  const bool clean = json.value("clean_text", true);
  const bool chinese = json.value("handle_chinese_chars", true);
  const bool lower = json.value("lowercase", true);
  const auto accents = json.find("strip_accents");
  const bool strip =
      accents == json.end() || accents->is_null() ? lower : accents->template get<bool>();
  return [=](std::string_view text) {
    std::string out = clean ? cleaned(text) : std::string(text);
    if (chinese) out = with_spaces_around_chinese(out);
    if (strip) out = without_accents(out);
    return lower ? lowercase(out) : out;
  };
}

std::string stripped(std::string_view text, bool left, bool right) {
  const auto is_space = [](char32_t c) { return (classes_of(c) & kSpace) != 0; };
  while (left && !text.empty() && is_space(character_at(text, 0).code))
    text.remove_prefix(character_at(text, 0).size);
  while (right && !text.empty() && is_space(character_before(text, text.size()).code))
    text.remove_suffix(character_before(text, text.size()).size);
  return std::string(text);
}

Normalizer make_sequence(const Json& json) {
  std::vector<Normalizer> all;
  for (const Json& one : json.at("normalizers")) {
    if (Normalizer made = make_normalizer(one)) all.push_back(std::move(made));
  }
  return [all](std::string_view text) {
    std::string out(text);
    for (const Normalizer& one : all) out = one(out);
    return out;
  };
}

Normalizer make_replace(const Json& json) {
  const auto by = json.at("content").get<std::string>();
  const auto text = json.at("pattern").find("String");
  if (text != json.at("pattern").end() && text->is_string()) {
    return [from = text->get<std::string>(), by](std::string_view in) {
      std::string out;
      while (true) {
        const auto at = from.empty() ? std::string_view::npos : in.find(from);
        out.append(in.substr(0, at));
        if (at == std::string_view::npos) return out;
        out.append(by);
        in.remove_prefix(at + from.size());
      }
    };
  }
  return [regex = pattern_of(json.at("pattern")), by](std::string_view in) {
    return regex.replaced(in, by);
  };
}

Normalizer make_form(NormalForm form) {
  return [form](std::string_view text) { return normalized(text, form); };
}

}  // namespace

void throw_unknown(std::string_view what, std::string_view type, std::string_view known) {
  throw Error(ErrorKind::kConfig, fmt::format("the {} '{}' is not known", what, type),
              fmt::format("known are {}", known));
}

Regex pattern_of(const Json& json) {
  const auto text = json.find("String");
  return text != json.end() ? Regex::literal(text->get<std::string>())
                            : Regex(json.at("Regex").get<std::string>());
}

Normalizer make_normalizer(const Json& json) {
  if (json.is_null()) return {};
  const auto type = json.at("type").get<std::string>();
  if (type == "Sequence") return make_sequence(json);
  if (type == "NFC") return make_form(NormalForm::kNfc);
  if (type == "NFD") return make_form(NormalForm::kNfd);
  if (type == "NFKC") return make_form(NormalForm::kNfkc);
  if (type == "NFKD") return make_form(NormalForm::kNfkd);
  if (type == "Lowercase") return lowercase;
  if (type == "BertNormalizer") return make_bert(json);
  if (type == "Replace") return make_replace(json);
  if (type == "Prepend") {
    return [front = json.at("prepend").get<std::string>()](std::string_view text) {
      return text.empty() ? std::string() : front + std::string(text);
    };
  }
  if (type == "Strip") {
    return [left = json.value("strip_left", true), right = json.value("strip_right", true)](
               std::string_view text) { return stripped(text, left, right); };
  }
  if (type == "StripAccents") {
    return [](std::string_view text) {
      return filtered(text, [](char32_t c) { return (classes_of(c) & kMark) == 0; });
    };
  }
  throw_unknown(
      "normalizer", type,
      "BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence, Strip "
      "and StripAccents");
}

}  // namespace trireme::data::detail
