// Every fused operator against its definition in plain ATen (reference.hpp): values and all
// gradients, fp32 tightly, bf16 by what rounding to it allows, on sizes that do not fill blocks or
// lanes.
#include "kernels/kokkos.hpp"
#include "reference.hpp"
#include <gtest/gtest.h>

namespace {

using torch::Tensor;
using trireme::model::ops::Layout;
namespace ops = trireme::model::ops;

using Inputs = std::vector<Tensor>;
using Function = std::function<Inputs(const Inputs&)>;

// Outputs, then gradients of all floating-point inputs under random output gradients that are the
// same for both sides.
Inputs evaluate(const Function& function, Inputs inputs, torch::ScalarType type) {
  for (auto& t : inputs)
    if (t.defined() && t.is_floating_point()) t = t.detach().to(type).requires_grad_();
  auto results = function(inputs);
  auto total = torch::zeros({}, torch::kDouble);
  torch::manual_seed(7);
  for (const auto& output : results)
    total = total +
            (output.to(torch::kDouble) * torch::randn(output.sizes()).to(type).to(torch::kDouble))
                .sum();
  total.backward();
  for (const auto& t : inputs)
    if (t.defined() && t.requires_grad()) results.push_back(t.grad());
  return results;
}

double distance(const Tensor& a, const Tensor& b) {
  const auto x = a.to(torch::kDouble), y = b.to(torch::kDouble);
  return (x - y).norm().item<double>() / (y.norm().item<double>() + 1e-30);
}

// The definition is evaluated in double; bf16 inputs are rounded first, so that both see the same
// numbers.
void expect_same(const Function& fused, const Function& definition, const Inputs& inputs) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    Inputs rounded = inputs;
    for (auto& t : rounded)
      if (t.defined() && t.is_floating_point()) t = t.to(type).to(torch::kFloat);
    const auto ours = evaluate(fused, rounded, type),
               theirs = evaluate(definition, rounded, torch::kFloat);
    const auto again = evaluate(fused, rounded, type);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].sizes(), theirs[i].sizes());
      EXPECT_LT(distance(ours[i], theirs[i]), type == torch::kFloat ? 2e-6 : 8e-3)
          << torch::toString(type) << " result " << i;
      EXPECT_TRUE(torch::equal(ours[i], again[i])) << "not the same bits twice: result " << i;
    }
  }
}

struct Ops : testing::Test {
  Ops() {
    torch::set_num_threads(1);
    torch::manual_seed(1);
  }
};

TEST_F(Ops, linear_in_both_layouts_with_and_without_bias) {
  for (const auto layout : {Layout::kInOut, Layout::kOutIn}) {
    const auto in_out = layout == Layout::kInOut;
    for (const auto& [rows, in, out] : {std::array{96, 64, 48}, std::array{37, 19, 21}}) {
      const auto weight = torch::randn({in_out ? in : out, in_out ? out : in});
      const Inputs inputs{torch::randn({2, rows, in}), weight, torch::randn({out})};
      expect_same(
          [&](const Inputs& i) { return Inputs{ops::linear(i[0], i[1], i[2], layout)}; },
          [&](const Inputs& i) { return Inputs{reference::linear(i[0], i[1], i[2], layout)}; },
          inputs);
      expect_same(
          [&](const Inputs& i) { return Inputs{ops::linear(i[0], i[1], {}, layout)}; },
          [&](const Inputs& i) { return Inputs{reference::linear(i[0], i[1], {}, layout)}; },
          {inputs[0], inputs[1]});
    }
  }
}

TEST_F(Ops, weight_gradient_of_a_head_wider_than_a_slice) {
  expect_same(
      [](const Inputs& i) { return Inputs{ops::linear(i[0], i[1], {}, Layout::kOutIn)}; },
      [](const Inputs& i) { return Inputs{reference::linear(i[0], i[1], {}, Layout::kOutIn)}; },
      {torch::randn({1, 33, 16}), torch::randn({4099, 16})});
}

TEST_F(Ops, add_layer_norm_with_and_without_delta) {
  for (const std::int64_t width : {64, 37}) {
    const Inputs inputs{torch::randn({3, 70, width}), torch::randn({3, 70, width}),
                        torch::randn({width}), torch::randn({width})};
    const auto both = [](auto pair) { return Inputs{pair.first, pair.second}; };
    expect_same(
        [&](const Inputs& i) { return both(ops::add_layer_norm(i[0], i[1], i[2], i[3], 1e-5)); },
        [&](const Inputs& i) {
          return both(reference::add_layer_norm(i[0], i[1], i[2], i[3], 1e-5));
        },
        inputs);
    expect_same(
        [&](const Inputs& i) { return both(ops::add_layer_norm(i[0], {}, i[1], i[2], 1e-5)); },
        [&](const Inputs& i) {
          return both(reference::add_layer_norm(i[0], {}, i[1], i[2], 1e-5));
        },
        {inputs[0], inputs[2], inputs[3]});
  }
}

TEST_F(Ops, add_norm_when_only_one_output_is_used) {
  const Inputs inputs{torch::randn({2, 5, 24}), torch::randn({2, 5, 24}), torch::randn({24}),
                      torch::randn({24})};
  expect_same(
      [](const Inputs& i) {
        return Inputs{ops::add_layer_norm(i[0], i[1], i[2], i[3], 1e-5).second};
      },
      [](const Inputs& i) {
        return Inputs{reference::add_layer_norm(i[0], i[1], i[2], i[3], 1e-5).second};
      },
      inputs);
  expect_same(
      [](const Inputs& i) {
        return Inputs{ops::add_layer_norm(i[0], i[1], torch::ones_like(i[0][0][0]).detach(),
                                          torch::zeros_like(i[0][0][0]).detach(), 1e-5)
                          .first};
      },
      [](const Inputs& i) { return Inputs{i[0] + i[1]}; }, {inputs[0], inputs[1]});
}

TEST_F(Ops, add_rms_norm) {
  for (const std::int64_t width : {64, 37}) {
    const auto both = [](auto pair) { return Inputs{pair.first, pair.second}; };
    expect_same(
        [&](const Inputs& i) { return both(ops::add_rms_norm(i[0], i[1], i[2], 1e-6)); },
        [&](const Inputs& i) { return both(reference::add_rms_norm(i[0], i[1], i[2], 1e-6)); },
        {torch::randn({3, 70, width}), torch::randn({3, 70, width}), torch::randn({width})});
  }
}

TEST_F(Ops, activations) {
  const Inputs inputs{torch::randn({3, 41, 29}) * 3, torch::randn({3, 41, 29})};
  expect_same([](const Inputs& i) { return Inputs{ops::gelu_tanh(i[0])}; },
              [](const Inputs& i) { return Inputs{reference::gelu_tanh(i[0])}; }, {inputs[0]});
  expect_same([](const Inputs& i) { return Inputs{ops::swiglu(i[0], i[1])}; },
              [](const Inputs& i) { return Inputs{reference::swiglu(i[0], i[1])}; }, inputs);
}

TEST_F(Ops, pack_rotated) {
  for (const std::int64_t D : {16, 10, 64}) {
    const auto table = ops::rotary_table(13, D, 10000);
    expect_same(
        [&](const Inputs& i) { return Inputs{ops::pack_rotated(i[0], i[1], i[2], table)}; },
        [&](const Inputs& i) { return Inputs{reference::pack_rotated(i[0], i[1], i[2], table)}; },
        {torch::randn({2, 13, 4, D}), torch::randn({2, 13, 2, D}), torch::randn({2, 13, 2, D})});
  }
}

TEST_F(Ops, causal_attention_of_every_shape) {
  struct Shape {
    std::int64_t B, T, H, G, D;
  };
  for (const auto& s : {Shape{2, 64, 2, 2, 64},
                        {1, 256, 3, 3, 64},
                        {2, 1, 2, 2, 16},
                        {1, 63, 2, 1, 32},
                        {1, 65, 4, 2, 8},
                        {2, 200, 6, 2, 24},
                        {1, 130, 2, 2, 7},
                        {1, 129, 2, 1, 128},
                        {3, 2, 1, 1, 2}}) {
    SCOPED_TRACE(testing::Message() << "T " << s.T << " H " << s.H << " G " << s.G << " D " << s.D);
    expect_same(
        [&](const Inputs& i) { return Inputs{ops::causal_attention(i[0], s.H, s.G)}; },
        [&](const Inputs& i) { return Inputs{reference::causal_attention(i[0], s.H, s.G)}; },
        {torch::randn({s.B, s.T, (s.H + 2 * s.G) * s.D})});
  }
}

TEST_F(Ops, causal_attention_with_scores_beyond_the_range_of_exp) {
  const auto qkv = torch::randn({1, 80, 3 * 32}) * 30;
  EXPECT_LT(distance(ops::causal_attention(qkv, 1, 1), reference::causal_attention(qkv, 1, 1)),
            1e-5);
}

TEST_F(Ops, embed_with_and_without_positions) {
  const auto tokens = torch::randint(0, 11, {3, 20}, torch::kLong);
  expect_same([&](const Inputs& i) { return Inputs{ops::embed(tokens, i[0], i[1])}; },
              [&](const Inputs& i) { return Inputs{reference::embed(tokens, i[0], i[1])}; },
              {torch::randn({12, 37}), torch::randn({25, 37})});
  expect_same([&](const Inputs& i) { return Inputs{ops::embed(tokens, i[0])}; },
              [&](const Inputs& i) { return Inputs{reference::embed(tokens, i[0])}; },
              {torch::randn({12, 32})});
}

TEST_F(Ops, cross_entropy_sum_with_ignored_targets) {
  for (const std::int64_t V : {256, 37}) {
    auto targets = torch::randint(0, V, {4, 50}, torch::kLong);
    targets.slice(1, 10, 15).fill_(-100);
    expect_same(
        [&](const Inputs& i) { return Inputs{ops::cross_entropy_sum(i[0], targets)}; },
        [&](const Inputs& i) { return Inputs{reference::cross_entropy_sum(i[0], targets)}; },
        {torch::randn({4, 50, V}) * 4});
  }
}

TEST_F(Ops, a_token_or_target_outside_the_vocabulary_is_refused) {
  const auto ids = torch::tensor({{0L, 5L}});
  EXPECT_THROW(ops::embed(ids, torch::randn({5, 4})), c10::IndexError);
  EXPECT_THROW(ops::cross_entropy_sum(torch::randn({1, 2, 5}), ids), c10::IndexError);
  EXPECT_THROW(ops::cross_entropy_sum(torch::randn({1, 2, 5}), -ids), c10::IndexError);
}

TEST_F(Ops, nan_reaches_every_result_so_that_a_bad_step_is_seen) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    auto qkv = torch::randn({1, 70, 3 * 16}).to(type);
    qkv[0][3][20] = NAN;
    EXPECT_TRUE(ops::causal_attention(qkv, 1, 1).isnan().any().item<bool>());
    auto logits = torch::randn({1, 4, 32}).to(type);
    logits[0][1][3] = NAN;
    EXPECT_TRUE(std::isnan(
        ops::cross_entropy_sum(logits, torch::zeros({1, 4}, torch::kLong)).item<float>()));
  }
}

}  // namespace
