// One value: from YAML to its slot, and against its record in the field table. For load.cpp and
// check.cpp.
#pragma once

#include "trireme/config/fields.hpp"

#include "tree.hpp"

#include <optional>
#include <string>

namespace trireme::config::detail {

// Stores a scalar or a list of scalars in `slot`. Returns what is wrong, in words that follow
// "path: ", or nothing. data.train and data.eval are not handled here.
std::optional<std::string> read_value(const FieldInfo& field, const Slot& slot, const Node& node);

// Returns how the stored value breaks its record (range, choice, form), or nothing.
std::optional<std::string> value_problem(const FieldInfo& field, const Slot& slot);

}  // namespace trireme::config::detail
