// How long this process has been running. Private to the room.
#pragma once

namespace trireme::train {

// Seconds since the kernel started this process, to about 10 ms; 0 where /proc does not tell.
double process_age();

}  // namespace trireme::train
