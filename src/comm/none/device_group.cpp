// Stands in for nccl/ where the build has no CUDA toolkit or no NCCL.
#include "trireme/comm/device_group.hpp"

#include "trireme/base/error.hpp"

namespace trireme::comm {

std::unique_ptr<DeviceGroup> make_gpu_group(Communicator&, int) {
  Error error(ErrorKind::kEnvironment,
              "GPUs cannot exchange memory: this program was built without NCCL",
              "build where a CUDA toolkit and NCCL are found (TRIREME_WITH_CUDA=ON says what is "
              "missing)");
  error.everywhere = true;
  throw error;
}

}  // namespace trireme::comm
