#include "memory/cuda/check.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <array>

namespace trireme::memory {

void check(cudaError_t code, std::string_view call, std::source_location where) {
  if (code == cudaSuccess) return;
  std::array<char, 32> bus{};
  int index = -1;
  if (cudaGetDevice(&index) != cudaSuccess ||
      cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index) != cudaSuccess) {
    bus = {'?'};
  }
  throw Error(ErrorKind::kDevice,
              fmt::format("{} failed on GPU {} ({}): {} ({})", call, index, bus.data(),
                          cudaGetErrorString(code), cudaGetErrorName(code)),
              "`nvidia-smi -q` and the kernel's log (dmesg, Xid) say whether the GPU is ill; "
              "another node has another",
              where);
}

}  // namespace trireme::memory
