// The start banner: what will run, on what, and where the settings came from. Private to the room.
#pragma once

#include "trireme/config/load.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/train/context.hpp"
#include "trireme/train/state.hpp"

#include <string>
#include <vector>

namespace trireme::train {

std::string banner(Context& context, const config::Loaded& loaded, const parallel::Engine& engine,
                   const TrainingState& state, std::uint64_t eval_samples);

// Returns how many threads a rank computes with: run.threads, or where results need not be
// reproducible, as many of the node's usable cores as there are for each rank, if that is more.
int threads_of(Context& context, const config::Run& run);

// Returns what a user should know before trusting the numbers: why results depend on the rank
// count, idle cores, ...
std::vector<std::string> start_warnings(Context& context, const config::Config& config,
                                        const parallel::Engine& engine);

}  // namespace trireme::train
