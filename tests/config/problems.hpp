// What load_text says about a text, for the tests of this room.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/config/load.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

// A text that loads, for tests that spoil one thing.
inline constexpr std::string_view kData = "data: {train: [{path: text.txt}]}\n";

// Returns the message of the Config error, or an empty text when everything is fine.
inline std::string problems(std::string_view yaml,
                            const std::vector<std::string>& assignments = {}) {
  try {
    load_text(yaml, "x.yaml", assignments);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message;
  }
  return {};
}

// The same with training data given, so that only what the test is about can be wrong.
inline std::string problems_with_data(std::string_view yaml) {
  return problems(yaml, {"data.train=text.txt"});
}

inline std::string problems_of_flag(const std::string& assignment) {
  return problems(kData, {assignment});
}

inline void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
}

}  // namespace trireme::config
