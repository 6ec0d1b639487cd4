// The way to the files that tests read: golden("models/gpt2.json") is <checkout>/tests/golden/models/gpt2.json.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace trireme::testing {

// The tests/ folder of the checkout: TRIREME_TEST_DATA, which ctest sets; else found upwards from the working folder, so
// that a test run by hand from the checkout or its build folder works too. Throws if there is none.
inline std::filesystem::path test_data() {
  if (const char* set = std::getenv("TRIREME_TEST_DATA"); set != nullptr && *set != '\0') return set;
  for (auto folder = std::filesystem::current_path();; folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / "tests" / "support" / "golden.hpp")) return folder / "tests";
    if (folder == folder.parent_path()) break;
  }
  throw std::runtime_error("set TRIREME_TEST_DATA to the checkout's tests/ folder");
}

inline std::filesystem::path golden(const std::filesystem::path& name) {
  return test_data() / "golden" / name;
}

}  // namespace trireme::testing
