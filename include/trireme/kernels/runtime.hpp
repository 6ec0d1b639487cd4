// Starts and ends Kokkos for the lifetime of one object, owned by the Context. Every kernel of this
// room needs one alive. When Kokkos is already running (a host program started it), neither start
// nor end is touched. Kokkos can be started once per process only, so a second Runtime may live
// inside the first one's lifetime but not after it.
#pragma once

namespace trireme::kernels {

class Runtime {
 public:
  Runtime();
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

 private:
  bool owns_;
};

}  // namespace trireme::kernels
