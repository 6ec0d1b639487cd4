// What holds for both models at any size: causality, grouped heads, types, counts, names, refusals.
#include "trireme/base/error.hpp"
#include "trireme/model/language_model.hpp"

#include "kernels/kokkos.hpp"
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

namespace {

using torch::Tensor;
using trireme::model::make;
using Shape = trireme::config::Model;

Shape small(const std::string& type) {
  return {.type = type,
          .layers = 2,
          .hidden = 48,
          .heads = 6,
          .kv_heads = type == "llama" ? 2 : 0,
          .context = 80,
          .vocab = 97};
}

Tensor tokens(std::int64_t B, std::int64_t T) {
  return torch::randint(0, 97, {B, T}, torch::kLong);
}

void to_bf16(torch::nn::Module& model) {
  for (auto& p : model.parameters()) p.set_data(p.detach().to(torch::kBFloat16));
}

double distance(const Tensor& a, const Tensor& b) {
  const auto x = a.to(torch::kDouble), y = b.to(torch::kDouble);
  return (x - y).norm().item<double>() / y.norm().item<double>();
}

struct Model : testing::TestWithParam<const char*> {
  Model() {
    torch::set_num_threads(1);
    torch::manual_seed(3);
  }
};

TEST_P(Model, changing_a_later_token_changes_no_earlier_logit) {
  torch::NoGradGuard no_grad;
  auto model = make(small(GetParam()));
  for (const bool bf16 : {false, true}) {
    if (bf16) to_bf16(*model);
    auto ids = tokens(2, 79);
    const auto before = model->logits(ids).clone();
    ids.select(1, 70).add_(1).remainder_(97);
    const auto after = model->logits(ids);
    EXPECT_TRUE(torch::equal(before.slice(1, 0, 70), after.slice(1, 0, 70)));
    EXPECT_FALSE(torch::equal(before.select(1, 70), after.select(1, 70)));
  }
}

TEST_P(Model, what_is_kept_of_earlier_tokens_gives_the_same_scores) {
  torch::NoGradGuard no_grad;
  auto model = make(small(GetParam()));
  const auto ids = tokens(2, 80);
  const auto expected = model->logits(ids);
  trireme::model::Past past;
  // All at once, one by one, several behind others: the context is full at the end.
  for (const std::int64_t end : {1, 2, 3, 20, 21, 50, 79, 80}) {
    const auto scores = model->next_logits(ids.slice(1, past.length, end), past);
    EXPECT_EQ(past.length, end);
    EXPECT_LT(distance(scores, expected.select(1, end - 1)), 1e-5) << end;
  }
}

TEST_P(Model, bf16_stays_close_to_fp32_and_flows_through) {
  auto model = make(small(GetParam()));
  const auto ids = tokens(2, 65), targets = tokens(2, 65);
  for (auto& p : model->parameters()) p.set_data(p.detach().to(torch::kBFloat16).to(torch::kFloat));
  const auto wide = model->loss_sum(ids, targets);
  wide.backward();
  std::vector<Tensor> expected;
  for (auto& p : model->parameters()) expected.push_back(p.grad().clone());
  model->zero_grad();
  to_bf16(*model);
  EXPECT_EQ(model->logits(ids).scalar_type(), torch::kBFloat16);
  const auto narrow = model->loss_sum(ids, targets);
  EXPECT_EQ(narrow.scalar_type(), torch::kFloat);
  EXPECT_NEAR(narrow.item<double>() / wide.item<double>(), 1, 1e-3);
  narrow.backward();
  const auto names = model->named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(names[i].value().grad().scalar_type(), torch::kBFloat16);
    EXPECT_LT(distance(names[i].value().grad(), expected[i]), 0.04) << names[i].key();
  }
}

TEST_P(Model, the_same_step_gives_the_same_bits) {
  auto model = make(small(GetParam()));
  to_bf16(*model);
  const auto ids = tokens(3, 70), targets = tokens(3, 70);
  std::vector<Tensor> first;
  for (int run = 0; run < 2; ++run) {
    model->zero_grad();
    model->loss_sum(ids, targets).backward();
    std::size_t i = 0;
    for (auto& p : model->parameters()) {
      if (run == 0)
        first.push_back(p.grad().clone());
      else
        EXPECT_TRUE(torch::equal(p.grad(), first[i++]));
    }
  }
}

TEST_P(Model, ignored_targets_add_nothing) {
  auto model = make(small(GetParam()));
  const auto ids = tokens(1, 12);
  auto targets = tokens(1, 12);
  const auto whole = model->loss_sum(ids, targets).item<double>();
  auto first = targets.clone(), rest = targets.clone();
  first.slice(1, 5).fill_(trireme::model::kIgnoredTarget);
  rest.slice(1, 0, 5).fill_(trireme::model::kIgnoredTarget);
  EXPECT_NEAR(
      model->loss_sum(ids, first).item<double>() + model->loss_sum(ids, rest).item<double>(), whole,
      1e-5 * whole);
  EXPECT_EQ(model->loss_sum(ids, torch::full_like(targets, trireme::model::kIgnoredTarget))
                .item<double>(),
            0);
}

TEST_P(Model, the_formula_counts_the_parameters_of_the_module) {
  for (auto shape : {small(GetParam()), Shape{.type = GetParam(), .vocab = 256}}) {
    for (const bool tied : {true, false}) {
      if (!tied && shape.type == "gpt2") continue;
      shape.tied_head = tied;
      std::int64_t counted = 0;
      for (const auto& p : make(shape)->parameters()) counted += p.numel();
      EXPECT_EQ(trireme::model::num_parameters(shape), counted);
    }
  }
}

TEST_P(Model, gradients_reach_every_parameter) {
  auto model = make(small(GetParam()));
  model->loss_sum(tokens(2, 80), tokens(2, 80)).backward();
  for (const auto& p : model->named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_GT(p.value().grad().abs().max().item<float>(), 0) << p.key();
  }
}

INSTANTIATE_TEST_SUITE_P(type, Model, testing::Values("gpt2", "llama"),
                         [](const auto& type) { return type.param; });

TEST(Llama, grouped_heads_equal_repeated_key_value_heads) {
  torch::NoGradGuard no_grad;
  auto shape = small("llama");
  auto grouped = make(shape);
  shape.kv_heads = shape.heads;
  auto repeated = make(shape);
  const auto from = grouped->named_parameters();
  for (auto& p : repeated->named_parameters()) {
    auto value = from[p.key()];
    if (value.size(0) != p.value().size(0))
      value = value.view({2, 8, 48}).repeat_interleave(3, 0).flatten(0, 1);
    p.value().copy_(value);
  }
  const auto ids = tokens(2, 50);
  EXPECT_LT(distance(grouped->logits(ids), repeated->logits(ids)), 1e-6);
}

TEST(Llama, a_tied_head_is_the_token_table_and_an_untied_one_is_not) {
  auto shape = small("llama");
  EXPECT_FALSE(make(shape)->named_parameters().contains("lm_head.weight"));
  shape.tied_head = false;
  EXPECT_TRUE(make(shape)->named_parameters().contains("lm_head.weight"));
}

TEST(Gpt2, flops_are_those_that_the_peers_count) {
  // peers/models.py: 6 (12 L d^2 + V d) + 12 L d T.
  const Shape s{.layers = 6, .hidden = 384, .heads = 6, .context = 256, .vocab = 256};
  EXPECT_EQ(trireme::model::flops_per_token(s, 256),
            6 * (12 * 6 * 384 * 384 + 256 * 384) + 12 * 6 * 384 * 256);
}

TEST(Gpt2, residual_projections_start_narrower) {
  torch::manual_seed(1);
  const auto p = make({.layers = 8, .hidden = 128, .heads = 4, .context = 16, .vocab = 64})
                     ->named_parameters();
  EXPECT_NEAR(p["transformer.h.3.mlp.c_fc.weight"].std().item<double>(), 0.02, 5e-4);
  EXPECT_NEAR(p["transformer.h.3.mlp.c_proj.weight"].std().item<double>(), 0.02 / 4, 2e-4);
  EXPECT_NEAR(p["transformer.h.3.attn.c_proj.weight"].std().item<double>(), 0.02 / 4, 2e-4);
  EXPECT_EQ(p["transformer.h.3.mlp.c_fc.bias"].abs().max().item<double>(), 0);
  EXPECT_EQ(p["transformer.ln_f.weight"].min().item<double>(), 1);
}

TEST(Models, sizes_that_do_not_fit_are_refused_by_name) {
  const auto message = [](const Shape& shape) -> std::string {
    try {
      make(shape);
    } catch (const trireme::Error& error) {
      EXPECT_EQ(error.kind, trireme::ErrorKind::kConfig);
      return error.message;
    }
    return "accepted";
  };
  auto with = [](auto change) {
    auto shape = small("llama");
    change(shape);
    return shape;
  };
  EXPECT_NE(message(with([](Shape& s) { s.heads = 5; })).find("model.heads"), std::string::npos);
  EXPECT_NE(message(with([](Shape& s) { s.kv_heads = 4; })).find("model.kv_heads"),
            std::string::npos);
  EXPECT_NE(message(with([](Shape& s) { s.heads = 16, s.kv_heads = 0; })).find("model.heads"),
            std::string::npos);
  EXPECT_NE(message(with([](Shape& s) { s.type = "bert"; })).find("bert"), std::string::npos);
  EXPECT_NE(message(with([](Shape& s) { s.vocab = 0; })).find("sizes"), std::string::npos);
}

}  // namespace
