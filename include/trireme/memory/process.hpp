// What the process's memory is and how the allocator treats it.
#pragma once

#include "trireme/base/units.hpp"

namespace trireme::memory {

// Keeps freed memory in the process (no mmap for large blocks, no trimming), on huge pages where
// the kernel gives them: a step then reuses warm pages instead of faulting fresh ones. Call once,
// before the first large allocation.
void keep_freed_memory();

struct Usage {
  Bytes resident;      // Rss: everything mapped and present, shared pages in full
  Bytes proportional;  // Pss: shared pages divided by the number of processes that map them
  Bytes peak;          // highest Rss so far
};

// Reads /proc/self/smaps_rollup and /proc/self/status; fields are 0 where the kernel does not tell.
Usage usage();

// Returns the highest resident size so far (getrusage); cheap enough for every step.
Bytes peak_resident();

}  // namespace trireme::memory
