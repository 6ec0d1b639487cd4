// Commands that need MPI and all that goes with it, and how they fail.
#pragma once

#include "trireme/train/context.hpp"

#include <functional>

namespace trireme::app {

// @collective. Runs `action` with a Context and returns the exit code. A failure that all ranks
// share ends each in order; any other ends the job at once, with its message.
int run_in_context(int& argc, char**& argv, const std::function<int(Context&)>& action);

}  // namespace trireme::app
