// The checks behind check(), for load.cpp, which must leave out what rests on values it could not
// read.
#pragma once

#include "trireme/config/load.hpp"

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::config::detail {

struct Finding {
  std::string path;  // the setting to blame
  std::string text;
};

// Returns what is wrong with the values themselves and between them; nothing that involves a path
// in `unreadable`.
std::vector<Finding> findings(const Config& config, const std::set<std::string>& unreadable);

// Returns "place: path: text", without the place when `sources` does not know it.
std::string located(const Finding& finding, const Sources& sources);

// Throws one Config error that lists `problems`, if there are any.
void throw_problems(const std::vector<std::string>& problems);

}  // namespace trireme::config::detail
