// Keys without counterpart here that would change the numbers of a run: refused, unless their value
// switches them off.
#pragma once

#include "trireme/config/foreign.hpp"

namespace trireme::config::foreign {

// Makes an error of a finding that says "no effect" when leaving the key out is not the same.
void refuse_if_it_changes_results(ForeignKind kind, const Value& meaning, ForeignFinding& finding);

}  // namespace trireme::config::foreign
