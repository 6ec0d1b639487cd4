// UTF-8 and the classes of characters that tokenizers split at. Case, categories and normal forms
// are ICU's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::data::detail {

enum CharacterClass : std::uint8_t {
  kLetter = 1,       // \p{L}
  kNumber = 2,       // \p{N}
  kSpace = 4,        // White_Space
  kPunctuation = 8,  // \p{P}, and ASCII's punctuation
  kWord = 16,        // \w
  kMark = 32,        // \p{M}
  kMarkNonspacing = 64,
  kOther = 128,  // \p{C} without what is not assigned
};

// The CharacterClass bits of a code point.
std::uint8_t classes_of(char32_t c);

// A code point of valid UTF-8 and the bytes that it takes.
struct Character {
  char32_t code;
  unsigned size;
};

inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (first < 0xf0) return {(first & 0xf) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(first & 7) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

// The character that ends at `end` > 0.
inline Character character_before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return character_at(text, at);
}

void append(std::string& text, char32_t c);

bool is_utf8(std::string_view text);
// With U+FFFD for every maximal part that is not UTF-8.
std::string to_utf8(std::string_view bytes);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalized(std::string_view text, NormalForm form);
// Each character alone, whatever stands around it.
std::string lowercase(std::string_view text);

}  // namespace trireme::data::detail
