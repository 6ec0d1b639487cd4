// What the tests with ranks start from. The test's main has started MPI: a Session adopts it, so each test may have one of
// its own, also with groups of ranks that count as nodes.
#pragma once

#include "support/error_of.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/session.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::testing {

inline comm::SessionOptions session_options(int ranks_per_node = 0, double timeout = 40) {
  return {std::chrono::duration<double>(timeout), ranks_per_node};
}

inline comm::ByteVector bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

inline std::string text_of(const comm::ByteVector& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace trireme::testing
