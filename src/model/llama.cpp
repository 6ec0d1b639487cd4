#include "llama.hpp"

#include <torch/nn/modules/container/modulelist.h>

namespace trireme::model {

using ops::Layout;

LlamaBlock::LlamaBlock(const config::Model& shape) : heads(shape.heads), kv_heads(shape.kv_heads) {
  const auto width = shape.hidden;
  const auto kv_width = width / heads * kv_heads;
  const auto add = [&](torch::nn::Module& parent, const char* name, std::int64_t in,
                       std::int64_t out) {
    return parent.register_module(
        name, std::make_shared<Linear>(in, out, false, Layout::kOutIn, shape.init_std));
  };
  auto attention = register_module("self_attn", std::make_shared<torch::nn::Module>());
  q = add(*attention, "q_proj", width, width);
  k = add(*attention, "k_proj", width, kv_width);
  v = add(*attention, "v_proj", width, kv_width);
  o = add(*attention, "o_proj", width, width);
  auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>());
  gate = add(*mlp, "gate_proj", width, shape.intermediate);
  up = add(*mlp, "up_proj", width, shape.intermediate);
  down = add(*mlp, "down_proj", shape.intermediate, width);
  input_norm = register_module("input_layernorm", std::make_shared<RmsNorm>(width, shape.norm_eps));
  post_attention_norm =
      register_module("post_attention_layernorm", std::make_shared<RmsNorm>(width, shape.norm_eps));
}

Residual LlamaBlock::forward(Residual residual, const torch::Tensor& cos_sin_TD,
                             ops::LayerPast* past) {
  const auto attend = [this, cos_sin_TD, past](const torch::Tensor& x_BTC) {
    const auto by_head = [&](const torch::Tensor& t, std::int64_t n) {
      return t.unflatten(-1, {n, cos_sin_TD.size(1)});
    };
    const auto qkv_BTP =
        ops::pack_rotated(by_head(q->forward(x_BTC), heads), by_head(k->forward(x_BTC), kv_heads),
                          by_head(v->forward(x_BTC), kv_heads), cos_sin_TD);
    return past != nullptr ? ops::attention_with_past(qkv_BTP, heads, kv_heads, *past)
                           : ops::causal_attention(qkv_BTP, heads, kv_heads);
  };
  residual.delta_BTC = o->forward(run_part(attention_how, attend, input_norm->forward(residual)));
  const auto y_BTC = post_attention_norm->forward(residual);
  residual.delta_BTC = down->forward(ops::swiglu(gate->forward(y_BTC), up->forward(y_BTC)));
  return residual;
}

Llama::Llama(const config::Model& shape)
    : head_width_(shape.hidden / shape.heads), theta_(shape.rope_theta) {
  auto model = register_module("model", std::make_shared<torch::nn::Module>());
  tokens_ = model->register_module(
      "embed_tokens", std::make_shared<Table>(shape.vocab, shape.hidden, shape.init_std));
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(std::make_shared<LlamaBlock>(shape));
    list->push_back(blocks_.back());
  }
  model->register_module("layers", list);
  norm_ = model->register_module("norm", std::make_shared<RmsNorm>(shape.hidden, shape.norm_eps));
  head_ = shape.tied_head
              ? tokens_
              : register_module("lm_head",
                                std::make_shared<Table>(shape.vocab, shape.hidden, shape.init_std));
}

void Llama::recompute_attention(const Recompute& how) {
  for (auto& block : blocks_) block->attention_how = how;
}

torch::Tensor Llama::logits(const torch::Tensor& tokens_BT) {
  const auto cos_sin_TD = ops::rotary_table(tokens_BT.size(1), head_width_, theta_);
  Residual residual{ops::embed(tokens_BT, tokens_->weight), {}};
  for (auto& block : blocks_) {
    const auto run = [&block, cos_sin_TD](Residual in) {
      return block->forward(std::move(in), cos_sin_TD);
    };
    residual = run_block(blocks_how(), run, std::move(residual));
  }
  return ops::linear(norm_->forward(residual), head_->weight, std::nullopt, Layout::kOutIn);
}

torch::Tensor Llama::next_logits(const torch::Tensor& tokens_BT, Past& past) {
  past.layers.resize(blocks_.size());
  const std::int64_t count = tokens_BT.size(1);
  const auto cos_sin_TD =
      ops::rotary_table(past.length + count, head_width_, theta_).slice(0, past.length);
  Residual residual{ops::embed(tokens_BT, tokens_->weight), {}};
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    residual = blocks_[i]->forward(std::move(residual), cos_sin_TD, &past.layers[i]);
  past.length += count;
  const auto last_B1C = norm_->forward(residual).slice(1, -1);
  return ops::linear(last_B1C.contiguous(), head_->weight, std::nullopt, Layout::kOutIn)
      .select(1, 0);
}

}  // namespace trireme::model
