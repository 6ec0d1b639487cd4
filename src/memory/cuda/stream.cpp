#include "memory/cuda/stream.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/handle.hpp"

#include "memory/cuda/check.hpp"
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::memory {

namespace {

struct EventTraits {
  using Type = cudaEvent_t;
  static Type null() { return nullptr; }
  static void close(Type event) noexcept { cudaEventDestroy(event); }
};
struct StreamTraits {
  using Type = cudaStream_t;
  static Type null() { return nullptr; }
  static void close(Type stream) noexcept { cudaStreamDestroy(stream); }
};

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(event_.address(), cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(event_.get(), stream), "cudaEventRecord");
  }
  bool reached() override {
    const cudaError_t code = cudaEventQuery(event_.get());
    if (code == cudaErrorNotReady) return false;
    check(code, "cudaEventQuery");
    return true;
  }
  cudaEvent_t get() const { return event_.get(); }

 private:
  Handle<EventTraits> event_;
};

// What calls on the host have thrown in a thread of the driver.
struct Failure {
  std::mutex mutex;
  std::exception_ptr first;
};

struct HostCall {
  std::function<void()> work;
  std::shared_ptr<Failure> failure;
};

void call_on_host(void* data) {
  const std::unique_ptr<HostCall> call(static_cast<HostCall*>(data));
  try {
    call->work();
  } catch (...) {
    const std::scoped_lock lock(call->failure->mutex);
    if (!call->failure->first) call->failure->first = std::current_exception();
  }
}

class CudaStream final : public DeviceStream {
 public:
  CudaStream(int device, std::string label, StreamPriority priority)
      : device_(device), label_(std::move(label)) {
    use();
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    // Not ordered with the default stream, which libraries use without being asked.
    check(cudaStreamCreateWithPriority(stream_.address(), cudaStreamNonBlocking,
                                       priority == StreamPriority::kHigh ? greatest : least),
          "cudaStreamCreateWithPriority");
  }

  std::shared_ptr<DeviceEvent> record() override {
    use();
    return std::make_shared<CudaEvent>(stream_.get());
  }

  void after(const std::shared_ptr<DeviceEvent>& event) override {
    const auto cuda_event = std::dynamic_pointer_cast<CudaEvent>(event);
    ensure(cuda_event != nullptr, "an event is of the stream's device");
    use();
    check(cudaStreamWaitEvent(stream_.get(), cuda_event->get(), 0), "cudaStreamWaitEvent");
  }

  void run(std::function<void()> work) override {
    use();
    auto call = std::make_unique<HostCall>(HostCall{std::move(work), failure_});
    check(cudaLaunchHostFunc(stream_.get(), call_on_host, call.get()), "cudaLaunchHostFunc");
    static_cast<void>(call.release());  // call_on_host has it
  }

  void wait(std::string_view what, Deadline deadline, const std::function<void()>& idle) override {
    use();
    for (cudaError_t code; (code = cudaStreamQuery(stream_.get())) != cudaSuccess;) {
      if (code != cudaErrorNotReady) check(code, what);
      if (idle) idle();
      if (deadline.expired()) {
        throw Error(
            ErrorKind::kTimeout,
            fmt::format("'{}' did not end in time on stream {} of GPU {}", what, label_, device_),
            "a rank that is stopped or dead keeps the others' collectives from ending");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    const std::scoped_lock lock(failure_->mutex);
    if (failure_->first) std::rethrow_exception(failure_->first);
  }

  void* native() const override { return stream_.get(); }

 private:
  void use() const { check(cudaSetDevice(device_), "cudaSetDevice"); }

  int device_;
  std::string label_;
  Handle<StreamTraits> stream_;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();  // calls may outlive the stream
};

}  // namespace

std::shared_ptr<DeviceStream> make_cuda_stream(int device, std::string label,
                                               StreamPriority priority) {
  return std::make_shared<CudaStream>(device, std::move(label), priority);
}

}  // namespace trireme::memory
