// Small text helpers that several rooms need.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

// Returns the candidate nearest to `word` by edit distance, or nothing when none is near enough to
// suggest.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

// Returns `text` as a JSON string literal with its quotes.
std::string json_quoted(std::string_view text);

}  // namespace trireme
