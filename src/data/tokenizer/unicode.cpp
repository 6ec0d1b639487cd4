#include "data/tokenizer/unicode.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <cstring>
#include <vector>

namespace trireme::data::detail {

namespace {

constexpr char32_t kCodePoints = 0x110000;

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

std::uint8_t computed_classes(char32_t code) {
  const auto c = static_cast<UChar32>(code);
  const std::uint32_t category = U_GET_GC_MASK(c);
  std::uint8_t classes = 0;
  if (category & U_GC_L_MASK) classes |= kLetter;
  if (category & U_GC_N_MASK) classes |= kNumber;
  if (u_isUWhiteSpace(c)) classes |= kSpace;
  if ((category & U_GC_P_MASK) || is_ascii_punctuation(code)) classes |= kPunctuation;
  if (u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
      (category & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK))) {
    classes |= kWord;
  }
  if (category & U_GC_M_MASK) classes |= kMark;
  if (category & U_GC_MN_MASK) classes |= kMarkNonspacing;
  if (category & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK)) classes |= kOther;
  return classes;
}

std::vector<std::uint8_t> all_classes() {
  std::vector<std::uint8_t> classes(kCodePoints);
  for (char32_t c = 0; c < kCodePoints; ++c) classes[c] = computed_classes(c);
  return classes;
}

// Bytes of the UTF-8 sequence at `at`, or 0; `bad` is the length of the part that is not UTF-8.
std::size_t sequence_at(std::string_view text, std::size_t at, std::size_t& bad) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned first = byte(0);
  bad = 1;
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte rules out overlong forms, surrogates and what is past U+10FFFF.
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < size; ++i) {
    if (at + i >= text.size()) return 0;
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xbf)) return 0;
    bad = i + 1;
  }
  return size;
}

const icu::Normalizer2& normalizer(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found =
      form == NormalForm::kNfc    ? icu::Normalizer2::getNFCInstance(status)
      : form == NormalForm::kNfd  ? icu::Normalizer2::getNFDInstance(status)
      : form == NormalForm::kNfkc ? icu::Normalizer2::getNFKCInstance(status)
                                  : icu::Normalizer2::getNFKDInstance(status);
  ensure(U_SUCCESS(status), "ICU has its normal forms");
  return *found;
}

}  // namespace

std::uint8_t classes_of(char32_t c) {
  static const std::vector<std::uint8_t> kClasses = all_classes();
  return kClasses[c];
}

void append(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

bool is_utf8(std::string_view text) {
  std::size_t bad = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = 0;
    if (at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    const std::size_t size = sequence_at(text, at, bad);
    if (size == 0) return false;
    at += size;
  }
  return true;
}

std::string to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  std::size_t bad = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t size = sequence_at(bytes, at, bad);
    if (size > 0) {
      text.append(bytes.substr(at, size));
    } else {
      append(text, 0xfffd);
    }
    at += size > 0 ? size : bad;
  }
  return text;
}

std::string normalized(std::string_view text, NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  normalizer(form).normalizeUTF8(
      0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr,
      status);
  ensure(U_SUCCESS(status), "UTF-8 has a normal form");
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    at += size;
    if (code == 0x130) {  // the only one that becomes two characters
      out += "i\xcc\x87";
    } else {
      append(out, static_cast<char32_t>(u_tolower(static_cast<UChar32>(code))));
    }
  }
  return out;
}

}  // namespace trireme::data::detail
