#include "trireme/parallel/activations.hpp"

#include "trireme/base/error.hpp"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>

namespace trireme::parallel {

namespace {

// Sees every allocation of tensors in this thread.
class Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*at*/, std::int64_t size, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    now_ += size;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
};

// As the engine does: a gradient is gone as soon as it is complete.
class Drop : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor& parameter) override { parameter.mutable_grad().reset(); }
};

// Returns zeros that are all the kernel's one page of them.
at::Tensor zeros_without_memory(at::IntArrayRef shape, at::ScalarType type) {
  const std::size_t bytes = std::max<std::size_t>(
      1, static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(type));
  void* const base =
      mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw Error(ErrorKind::kOutOfMemory,
                fmt::format("cannot reserve {} bytes of addresses for a parameter", bytes),
                "raise `ulimit -v`");
  }
  return at::from_blob(
      base, shape, [bytes](void* at) { munmap(at, bytes); }, type);
}

}  // namespace

Bytes measure_activations(torch::nn::Module& module, at::ScalarType compute,
                          const std::function<at::Tensor()>& loss) {
  for (at::Tensor& parameter : module.parameters()) {
    parameter.mutable_grad().reset();
    parameter.set_data(zeros_without_memory(parameter.sizes(), compute));
    if (parameter.requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Drop>());
  }
  const auto counter = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  loss().backward();
  return Bytes(counter->peak());
}

}  // namespace trireme::parallel
