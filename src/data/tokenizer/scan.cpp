// The patterns of GPT-2 and its successors without a regular expression: one look at each
// character's class, from left to right.
#include "data/tokenizer/pre_tokenizer.hpp"
#include "data/tokenizer/unicode.hpp"

#include <array>

namespace trireme::data::detail {

namespace {

constexpr std::uint8_t kNewline = 128;  // \r and \n; takes the bit of kOther, which is not needed

struct Seen {
  std::uint8_t classes;
  unsigned size;
};

std::array<std::uint8_t, 128> ascii_classes() {
  std::array<std::uint8_t, 128> all{};
  for (char32_t c = 0; c < all.size(); ++c) {
    all[c] = classes_of(c) & (kLetter | kNumber | kSpace);
    if (c == '\r' || c == '\n') all[c] |= kNewline;
  }
  return all;
}

const std::array<std::uint8_t, 128> kAscii = ascii_classes();

class Scanner {
 public:
  Scanner(std::string_view text, const ScanRules& rules) : text_(text), rules_(rules) {}

  // The end of the piece that begins at `at` < size.
  std::size_t end_of_piece(std::size_t at) const {
    if (text_[at] == '\'') {
      if (const std::size_t size = contraction(at)) return at + size;
    }
    const Seen first = look(at);
    if (first.classes & kLetter) return run_of(kLetter, at + first.size);
    if (first.classes & kNumber) return number(at);
    const std::size_t after = at + first.size;
    const Seen second = look(after);
    const bool is_blank = text_[at] == ' ';
    if ((rules_.any_prefix ? (first.classes & kNewline) == 0 : is_blank) &&
        (second.classes & kLetter)) {
      return run_of(kLetter, after + second.size);
    }
    if (is_blank && rules_.most_digits == 0 && (second.classes & kNumber))
      return run_of(kNumber, after + second.size);
    if ((first.classes & kSpace) == 0) return others(after);
    if (is_blank && second.size > 0 && (second.classes & (kLetter | kNumber | kSpace)) == 0)
      return others(after + second.size);
    return spaces(at);
  }

 private:
  Seen look(std::size_t at) const {
    if (at >= text_.size()) return {0, 0};
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 0x80) return {kAscii[byte], 1};
    const auto [code, size] = character_at(text_, at);
    return {static_cast<std::uint8_t>(classes_of(code) & (kLetter | kNumber | kSpace)), size};
  }

  std::size_t run_of(std::uint8_t wanted, std::size_t at) const {
    for (Seen seen = look(at); seen.classes & wanted; seen = look(at)) at += seen.size;
    return at;
  }

  std::size_t number(std::size_t at) const {
    if (rules_.most_digits == 0) return run_of(kNumber, at);
    for (unsigned i = 0; i < rules_.most_digits; ++i) {
      const Seen seen = look(at);
      if ((seen.classes & kNumber) == 0) break;
      at += seen.size;
    }
    return at;
  }

  std::size_t others(std::size_t at) const {
    for (Seen seen = look(at); seen.size > 0 && (seen.classes & (kLetter | kNumber | kSpace)) == 0;
         seen = look(at)) {
      at += seen.size;
    }
    if (!rules_.own_newlines) return at;
    return run_of(kNewline, at);
  }

  // A run of white space: to its last newline if that is asked for, else without the last
  // character where something follows that may take it.
  std::size_t spaces(std::size_t begin) const {
    std::size_t at = begin;
    std::size_t last = begin;  // where the last character begins
    std::size_t newline = begin;
    for (Seen seen = look(at); seen.classes & kSpace; seen = look(at)) {
      last = at;
      at += seen.size;
      if (seen.classes & kNewline) newline = at;
    }
    if (rules_.own_newlines && newline > begin) return newline;
    return at < text_.size() && last > begin ? last : at;
  }

  std::size_t contraction(std::size_t at) const {
    const auto lower = [&](std::size_t i) -> char {
      if (at + i >= text_.size()) return 0;
      const char c = text_[at + i];
      return rules_.any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char one = lower(1);
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return 2;
    // The long s is an s where case does not count.
    if (rules_.any_case && text_.substr(at + 1).starts_with("\xc5\xbf")) return 3;
    const char two = lower(2);
    if (one == 'r' && two == 'e') return 3;
    if (one == 'v' && two == 'e') return 3;
    return one == 'l' && two == 'l' ? 3 : 0;
  }

  std::string_view text_;
  ScanRules rules_;
};

}  // namespace

void scan(std::string_view text, const ScanRules& rules, bool first, Pieces& out) {
  const Scanner scanner(text, rules);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = scanner.end_of_piece(at);
    out.all.push_back({text.substr(at, end - at), first && at == 0});
    at = end;
  }
}

}  // namespace trireme::data::detail
