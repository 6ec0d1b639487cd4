// What a micro-batch holds beside weights, as the allocator counts it, against the formula that plans are made with.
#include "trireme/model/language_model.hpp"
#include "trireme/parallel/activations.hpp"
#include "trireme/parallel/recompute.hpp"

#include "kokkos.hpp"
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <tuple>

namespace trireme::model {
namespace {

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
  if (std::string(recompute) == "full") model->recompute_blocks(checkpoint);
  if (std::string(recompute) == "attention") model->recompute_attention(checkpoint);
  const std::int64_t batch = 4, length = 192;
  const auto tokens_BT = torch::randint(0, shape.vocab, {batch, length});
  const auto targets_BT = torch::randint(0, shape.vocab, {batch, length});
  const Bytes peak = parallel::measure_activations(*model, wide ? at::kFloat : at::kBFloat16,
                                                   [&] { return model->loss_sum(tokens_BT, targets_BT); });
  const auto planned = static_cast<double>(activation_bytes(shape, batch, length, wide ? 4 : 2, recompute));
  EXPECT_NEAR(static_cast<double>(peak.value) / planned, 1, 0.15)
      << peak.value << " bytes, planned " << planned;
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
