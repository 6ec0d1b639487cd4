// Both models against Hugging Face transformers' own GPT-2 and Llama in fp32: data/README.md says
// where the numbers come from and how exact they are.
#include "trireme/model/language_model.hpp"

#include "kernels/kokkos.hpp"
#include "safetensors.hpp"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <fstream>

namespace {

using nlohmann::json;
using torch::Tensor;
using trireme::model::LanguageModel;

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

trireme::config::Model shape_of(const json& c) {
  if (c.at("model_type") == "gpt2") {
    return {.type = "gpt2",
            .layers = c.at("n_layer"),
            .hidden = c.at("n_embd"),
            .heads = c.at("n_head"),
            .context = c.at("n_positions"),
            .vocab = c.at("vocab_size"),
            .norm_eps = c.at("layer_norm_epsilon")};
  }
  return {.type = "llama",
          .layers = c.at("num_hidden_layers"),
          .hidden = c.at("hidden_size"),
          .heads = c.at("num_attention_heads"),
          .kv_heads = c.at("num_key_value_heads"),
          .context = c.at("max_position_embeddings"),
          .vocab = c.at("vocab_size"),
          .intermediate = c.at("intermediate_size"),
          .tied_head = c.at("tie_word_embeddings"),
          .norm_eps = c.at("rms_norm_eps"),
          .rope_theta = c.at("rope_parameters").at("rope_theta")};
}

double length_of(const Tensor& t) { return t.to(torch::kDouble).norm().item<double>(); }

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    const auto folder = std::string(TRIREME_TEST_DATA) + "/model/data/" + GetParam();
    expected = read_json(folder + "/expected.json");
    tensors = read_safetensors(folder + "/expected.safetensors");
    inputs = read_safetensors(folder + "/input_ids.safetensors");
    model = trireme::model::make(shape_of(read_json(folder + "/config.json")));
    const auto weights = read_safetensors(folder + "/model.safetensors");
    ASSERT_EQ(weights.size(), model->named_parameters().size());
    torch::NoGradGuard no_grad;
    for (auto& p : model->named_parameters()) p.value().copy_(weights.at(p.key()));
  }

  // transformers' loss: ids predict their successors, the mean over T - 1 targets a sequence.
  Tensor mean_loss(const Tensor& ids_BT) {
    const auto tokens_BT = ids_BT.slice(1, 0, -1).contiguous(),
               targets_BT = ids_BT.slice(1, 1).contiguous();
    return model->loss_sum(tokens_BT, targets_BT) / static_cast<double>(targets_BT.numel());
  }

  json expected;
  std::map<std::string, Tensor> tensors, inputs;
  std::shared_ptr<LanguageModel> model;
};

TEST_P(Golden, logits_are_those_of_transformers) {
  torch::NoGradGuard no_grad;
  const auto logits = model->logits(inputs.at("reference"));
  EXPECT_LT((logits - tensors.at("logits")).abs().max().item<double>(),
            2e-6 * tensors.at("logits").abs().max().item<double>());
}

TEST_P(Golden, loss_and_gradients_are_those_of_transformers) {
  const auto loss = mean_loss(inputs.at("reference"));
  EXPECT_NEAR(loss.item<double>() / expected.at("loss").get<double>(), 1, 1e-5);
  loss.backward();
  for (const auto& p : model->named_parameters()) {
    const auto& wanted = tensors.at("grad." + p.key());
    const auto error = p.value().grad() - wanted;
    EXPECT_LT(length_of(error), 1e-4 * length_of(wanted)) << p.key();
    // No single element hides behind the norm: bounded by the gradient's largest.
    EXPECT_LT(error.abs().max().item<double>(), 1e-4 * wanted.abs().max().item<double>())
        << p.key();
  }
}

TEST_P(Golden, twenty_adamw_steps_follow_the_losses_of_transformers) {
  const auto& o = expected.at("adamw");
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(o.at("lr").get<double>())
                                    .betas({o.at("betas")[0], o.at("betas")[1]})
                                    .eps(o.at("eps"))
                                    .weight_decay(o.at("weight_decay")));
  const auto steps = inputs.at("steps");
  for (std::int64_t i = 0; i < steps.size(0); ++i) {
    optimizer.zero_grad();
    const auto loss = mean_loss(steps[i]);
    loss.backward();
    const auto total =
        torch::nn::utils::clip_grad_norm_(model->parameters(), o.at("clip_grad_norm"));
    optimizer.step();
    const auto step = static_cast<std::size_t>(i);
    EXPECT_NEAR(loss.item<double>() / expected.at("losses")[step].get<double>(), 1, 2e-5)
        << "step " << i;
    EXPECT_NEAR(total / expected.at("grad_norms")[step].get<double>(), 1, 2e-4) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(transformers, Golden,
                         testing::Values("gpt2", "llama-tied", "llama-untied"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
