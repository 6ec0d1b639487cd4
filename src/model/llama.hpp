// Llama: rotary positions, RMSNorm before each part, SwiGLU, grouped-query attention, tied or
// untied head, no biases.
#pragma once

#include "trireme/model/language_model.hpp"

#include "layers.hpp"

namespace trireme::model {

// One decoder layer: model.layers.<n> of the checkpoint, and a unit of the sharding engine.
struct LlamaBlock : torch::nn::Module {
  explicit LlamaBlock(const config::Model& shape);
  Residual forward(Residual residual, const torch::Tensor& cos_sin_TD,
                   ops::LayerPast* past = nullptr);

  std::int64_t heads, kv_heads;
  Recompute attention_how;
  std::shared_ptr<RmsNorm> input_norm, post_attention_norm;
  std::shared_ptr<Linear> q, k, v, o, gate, up, down;
};

class Llama : public LanguageModel {
 public:
  explicit Llama(const config::Model& shape);
  torch::Tensor logits(const torch::Tensor& tokens_BT) override;
  torch::Tensor next_logits(const torch::Tensor& tokens_BT, Past& past) override;
  void recompute_attention(const Recompute& how) override;

 private:
  std::int64_t head_width_;
  double theta_;
  std::shared_ptr<Table> tokens_;
  std::vector<std::shared_ptr<LlamaBlock>> blocks_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Table> head_;  // the token table where tied
};

}  // namespace trireme::model
