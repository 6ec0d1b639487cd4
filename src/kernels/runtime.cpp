#include "trireme/kernels/runtime.hpp"

#include <Kokkos_Core.hpp>

namespace trireme::kernels {

// The argc/argv form is the one that Kokkos 3.4 to 4.x share; it also reads KOKKOS_* and OMP_* from
// the environment.
Runtime::Runtime() : owns_(!Kokkos::is_initialized()) {
  if (!owns_) return;
  char name[] = "trireme";
  char quiet[] = "--kokkos-disable-warnings";
  char* arguments[] = {name, quiet, nullptr};
  int count = 2;
  Kokkos::initialize(count, arguments);
}

Runtime::~Runtime() {
  if (owns_ && Kokkos::is_initialized()) Kokkos::finalize();
}

}  // namespace trireme::kernels
