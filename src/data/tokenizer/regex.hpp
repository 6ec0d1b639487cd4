// Regular expressions of tokenizer files, through PCRE2 with its just-in-time compiler.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::data::detail {

class Regex {
 public:
  // Throws Corrupt for what PCRE2 does not take.
  explicit Regex(const std::string& pattern);
  // Matches exactly this text.
  static Regex literal(std::string_view text);

  // Calls `found(begin, end)` for every match from left to right; empty ones are passed over. Throws Config
  // when a match takes too many steps.
  void each_match(std::string_view text,
                  const std::function<void(std::size_t, std::size_t)>& found) const;
  std::string replaced(std::string_view text, std::string_view by) const;

 private:
  std::shared_ptr<void> code_;  // compiled; read by several threads, and by copies of the pipeline
};

}  // namespace trireme::data::detail
