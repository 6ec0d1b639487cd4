// Stands in for cuda/ where the build has no CUDA toolkit.
#include "trireme/memory/device.hpp"

#include "trireme/base/error.hpp"

namespace trireme::memory {

std::unique_ptr<Device> open_gpu(const DeviceOptions&) {
  throw Error(ErrorKind::kEnvironment, "no GPU can be used: this program was built without CUDA",
              "build where a CUDA toolkit and NCCL are found (TRIREME_WITH_CUDA=ON says what is "
              "missing), or set run.device: cpu");
}

}  // namespace trireme::memory
