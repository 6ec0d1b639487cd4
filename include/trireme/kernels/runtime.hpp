// Starts and ends Kokkos for the lifetime of one object, owned by the Context.
#pragma once

namespace trireme::kernels {

class Runtime {
 public:
  Runtime();
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
};

}  // namespace trireme::kernels
