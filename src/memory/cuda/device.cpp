// A GPU by way of the CUDA runtime. No kernels here: those are Kokkos', on the streams made here.
#include "trireme/memory/device.hpp"

#include "trireme/base/environment.hpp"
#include "trireme/base/error.hpp"

#include "memory/cuda/check.hpp"
#include "memory/cuda/stream.hpp"
#include "memory/device_pool.hpp"
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <utility>

namespace trireme::memory {

namespace {

std::string version_text(int version) {
  return version == 0 ? "none" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Everything that decides whether there is a GPU, for the message that there is none.
std::string probed() {
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  std::error_code ignored;
  const auto visible = lookup(current_environment(), "CUDA_VISIBLE_DEVICES");
  return fmt::format("runtime {}, driver {}, /dev/nvidiactl {}, CUDA_VISIBLE_DEVICES {}",
                     version_text(runtime), version_text(driver),
                     std::filesystem::exists("/dev/nvidiactl", ignored) ? "there" : "not there",
                     visible ? "'" + *visible + "'" : "not set");
}

void require_device(int index) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && index >= 0 && index < count) return;
  const std::string found = code == cudaSuccess
                                ? fmt::format("GPU {} is asked for, {} can be seen", index, count)
                                : fmt::format("cudaGetDeviceCount: {}", cudaGetErrorString(code));
  throw Error(
      ErrorKind::kEnvironment, fmt::format("no GPU can be used: {} ({})", found, probed()),
      "ask the batch system for GPUs (--gpus-per-node, ngpus), load the driver's module, or "
      "set run.device: cpu");
}

class CudaSource final : public DeviceMemorySource {
 public:
  explicit CudaSource(int device) : device_(device) {
    std::size_t free = 0;
    check(cudaMemGetInfo(&free, &total_), "cudaMemGetInfo");
  }
  std::byte* acquire(std::size_t size) override {
    check(cudaSetDevice(device_), "cudaSetDevice");
    void* memory = nullptr;
    const cudaError_t code = cudaMalloc(&memory, size);
    if (code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // it is answered here and is nobody else's
      return nullptr;
    }
    check(code, "cudaMalloc");
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) noexcept override { cudaFree(memory); }
  std::size_t total() const override { return total_; }

 private:
  int device_;
  std::size_t total_ = 0;
};

class CudaPin final : public Pin {
 public:
  explicit CudaPin(std::byte* memory) : memory_(memory) {}
  ~CudaPin() override { cudaHostUnregister(memory_); }
  CudaPin(const CudaPin&) = delete;
  CudaPin& operator=(const CudaPin&) = delete;

 private:
  std::byte* memory_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceOptions& options)
      : Device(std::make_shared<DevicePool>(std::make_unique<CudaSource>(options.index),
                                            static_cast<std::size_t>(options.limit.value))),
        index_(options.index) {}

  std::string describe() const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
    std::array<char, 32> bus{};
    check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index_),
          "cudaDeviceGetPCIBusId");
    return fmt::format("{} ({}, compute capability {}.{})", properties.name, bus.data(),
                       properties.major, properties.minor);
  }

  std::shared_ptr<DeviceStream> stream(std::string label, StreamPriority priority) override {
    return make_cuda_stream(index_, std::move(label), priority);
  }

  std::unique_ptr<Pin> pin(std::span<std::byte> memory, std::string label) override {
    use();
    const cudaError_t code =
        cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
    if (code == cudaErrorMemoryAllocation) {
      throw Error(ErrorKind::kOutOfMemory,
                  fmt::format("cannot pin {} for {}",
                              human(Bytes(static_cast<std::int64_t>(memory.size()))), label),
                  "raise the limit of locked memory (ulimit -l), or offload less");
    }
    check(code, "cudaHostRegister");
    return std::make_unique<CudaPin>(memory.data());
  }

  void copy(std::span<std::byte> to, std::span<const std::byte> from,
            DeviceStream& stream) override {
    ensure(to.size() == from.size(), "a copy has one size");
    if (to.empty()) return;
    use();
    check(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDefault, raw(stream)),
          "cudaMemcpyAsync");
  }
  void zero(std::span<std::byte> to, DeviceStream& stream) override {
    if (to.empty()) return;
    use();
    check(cudaMemsetAsync(to.data(), 0, to.size(), raw(stream)), "cudaMemsetAsync");
  }

 private:
  static cudaStream_t raw(DeviceStream& stream) {
    return static_cast<cudaStream_t>(stream.native());
  }
  void use() const { check(cudaSetDevice(index_), "cudaSetDevice"); }

  int index_;
};

}  // namespace

std::unique_ptr<Device> open_gpu(const DeviceOptions& options) {
  require_device(options.index);
  check(cudaSetDevice(options.index), "cudaSetDevice");
  return std::make_unique<CudaDevice>(options);
}

}  // namespace trireme::memory
