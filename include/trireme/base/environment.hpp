// The process environment as a value, so that whoever reads variables can be tested with recorded
// ones.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace trireme {

using Environment = std::map<std::string, std::string, std::less<>>;

Environment current_environment();

// Returns the variable's value, or nothing when unset.
std::optional<std::string> lookup(const Environment& environment, std::string_view name);

// Returns the host name without its domain.
std::string host_name();

}  // namespace trireme
