#include "data/tokenizer/regex.hpp"

#include "trireme/base/error.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

namespace trireme::data::detail {

namespace {

constexpr std::uint32_t kMostSteps = 50'000'000;

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string message_of(int code) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Regex::Regex(const std::string& pattern) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
  if (compiled == nullptr) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("the regular expression '{}' is not understood at {}: {}", pattern,
                            offset, message_of(code)));
  }
  code_.reset(compiled, [](void* held) { pcre2_code_free(static_cast<pcre2_code*>(held)); });
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // where it cannot, the interpreter does it
}

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0) {
      pattern += fmt::format("\\x{{{:x}}}", static_cast<unsigned>(c));
    } else {
      pattern.push_back(c);
    }
  }
  return Regex(pattern);
}

void Regex::each_match(std::string_view text,
                       const std::function<void(std::size_t, std::size_t)>& found) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMostSteps);
  for (std::size_t at = 0; at < text.size();) {
    const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                   PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) return;
    if (result < 0) {
      throw Error(ErrorKind::kConfig, fmt::format("the tokenizer's regular expression fails at "
                                                  "byte {} of a document: {}",
                                                  at, message_of(result)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[1] <= ends[0] || ends[1] <= at) return;  // a lookbehind that moved the start
    found(ends[0], ends[1]);
    at = ends[1];
  }
}

std::string Regex::replaced(std::string_view text, std::string_view by) const {
  std::string out;
  std::size_t done = 0;
  each_match(text, [&](std::size_t begin, std::size_t end) {
    out.append(text.substr(done, begin - done)).append(by);
    done = end;
  });
  return out.append(text.substr(done));
}

}  // namespace trireme::data::detail
