// GPT-2: learned positions, LayerNorm before each part, tanh-GELU, biases, head tied to the token
// table.
#pragma once

#include "trireme/model/language_model.hpp"

#include "layers.hpp"

namespace trireme::model {

// One transformer block: h.<n> of the checkpoint, and a unit of the sharding engine.
struct Gpt2Block : torch::nn::Module {
  explicit Gpt2Block(const config::Model& shape);
  Residual forward(Residual residual, ops::LayerPast* past = nullptr);

  std::int64_t heads;
  Recompute attention_how;
  std::shared_ptr<LayerNorm> ln_1, ln_2;
  std::shared_ptr<Linear> attn_in, attn_out, mlp_in, mlp_out;
};

class Gpt2 : public LanguageModel {
 public:
  explicit Gpt2(const config::Model& shape);
  torch::Tensor logits(const torch::Tensor& tokens_BT) override;
  torch::Tensor next_logits(const torch::Tensor& tokens_BT, Past& past) override;
  void recompute_attention(const Recompute& how) override;

 private:
  std::shared_ptr<Table> wte_, wpe_;
  std::vector<std::shared_ptr<Gpt2Block>> blocks_;
  std::shared_ptr<LayerNorm> ln_f_;
};

}  // namespace trireme::model
