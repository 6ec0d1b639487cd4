// Reads data/env: what processes saw under real launchers (constructed-* from published names).
// NAME=VALUE lines; the first line is the truth as MPI answered it; lines "#+" came only with
// MPI_Init and are left out, since nobody sees them before it.
#pragma once

#include "trireme/base/environment.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

namespace trireme::cluster {

struct Recorded {
  Environment environment;
  std::map<std::string, std::string> truth;
};

inline std::filesystem::path environments() {
  return std::filesystem::path(TRIREME_TEST_DATA) / "cluster/data/env";
}

inline Recorded read(const std::filesystem::path& file) {
  Recorded recorded;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("#: ")) {
      std::istringstream words(line.substr(3));
      for (std::string word; words >> word;) {
        const auto equals = word.find('=');
        recorded.truth[word.substr(0, equals)] = word.substr(equals + 1);
      }
    } else if (!line.starts_with('#')) {
      const auto equals = line.find('=');
      recorded.environment[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  return recorded;
}

inline Environment recorded(const std::string& name) {
  return read(environments() / (name + ".env")).environment;
}

inline std::string recorded_file(const std::string& name) {
  std::ifstream stream(environments() / name);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace trireme::cluster
