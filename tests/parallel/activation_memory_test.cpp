// What a micro-batch holds beside weights, as the allocator counts it, against the formula that plans are made with.
#include "trireme/model/language_model.hpp"
#include "trireme/parallel/recompute.hpp"

#include "kokkos.hpp"
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>

namespace trireme::model {
namespace {

class Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*at*/, std::int64_t size, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
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

// type, layers, recompute, fp32, vocabulary
class ActivationMemory : public ::testing::TestWithParam<std::tuple<const char*, int, const char*, bool, int>> {};

TEST_P(ActivationMemory, is_what_the_formula_says) {
  const auto& [type, layers, recompute, wide, vocabulary] = GetParam();
  config::Model shape;
  shape.type = type;
  shape.layers = layers;
  shape.hidden = 128;
  shape.heads = 4;
  shape.kv_heads = std::string(type) == "llama" ? 2 : 0;
  shape.context = 256;
  shape.vocab = vocabulary;
  shape = resolved(shape);
  auto model = make(shape);
  model->to(wide ? at::kFloat : at::kBFloat16);
  for (const at::Tensor& parameter : model->parameters())
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Drop>());
  if (std::string(recompute) == "full") model->recompute_blocks(checkpoint);
  if (std::string(recompute) == "attention") model->recompute_attention(checkpoint);
  const std::int64_t batch = 4, length = 192;
  const auto tokens_BT = torch::randint(0, shape.vocab, {batch, length});
  const auto targets_BT = torch::randint(0, shape.vocab, {batch, length});
  const auto pass = [&] { model->loss_sum(tokens_BT, targets_BT).backward(); };
  pass();  // what is made once
  const auto counter = std::make_shared<Counter>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    pass();
  }
  const auto planned = static_cast<double>(activation_bytes(shape, batch, length, wide ? 4 : 2, recompute));
  EXPECT_NEAR(static_cast<double>(counter->peak()) / planned, 1, 0.15)
      << counter->peak() << " bytes, planned " << planned;
}

INSTANTIATE_TEST_SUITE_P(each, ActivationMemory,
                         ::testing::Combine(::testing::Values("gpt2", "llama"), ::testing::Values(2, 12),
                                            ::testing::Values("none", "attention", "full"), ::testing::Bool(),
                                            ::testing::Values(512, 4096)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param)) +
                                  "_layers_" + std::get<2>(test.param) + (std::get<3>(test.param) ? "_fp32_" : "_bf16_") +
                                  std::to_string(std::get<4>(test.param));
                         });

}  // namespace
}  // namespace trireme::model
