// Where the network computes, and weights and gradients live.
#pragma once

namespace trireme::comm {
class Session;
}

namespace trireme::parallel {

enum class ComputeOn {
  kHost,  // in memory that the ranks of a node share
  kGpu,   // each rank on a device of its own
  // For tests: on the host as a device of each rank, whose streams work early or late
  // (memory::HostTiming).
  kEarlyDevice,
  kLateDevice,
};

// @collective. Throws Environment on every rank, saying what was found and what to do, where an
// engine cannot compute there.
void require(comm::Session& session, ComputeOn compute_on);

}  // namespace trireme::parallel
