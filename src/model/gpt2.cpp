#include "gpt2.hpp"

#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

namespace trireme::model {

using ops::Layout;

Gpt2Block::Gpt2Block(const config::Model& shape) : heads(shape.heads) {
  const auto width = shape.hidden;
  // Every block adds twice to the residual stream; the scale keeps its variance independent of
  // depth.
  const double residual_std = shape.init_std / std::sqrt(2.0 * static_cast<double>(shape.layers));
  ln_1 = register_module("ln_1", std::make_shared<LayerNorm>(width, shape.norm_eps));
  auto attn = register_module("attn", std::make_shared<torch::nn::Module>());
  attn_in = attn->register_module(
      "c_attn", std::make_shared<Linear>(width, 3 * width, true, Layout::kInOut, shape.init_std));
  attn_out = attn->register_module(
      "c_proj", std::make_shared<Linear>(width, width, true, Layout::kInOut, residual_std));
  ln_2 = register_module("ln_2", std::make_shared<LayerNorm>(width, shape.norm_eps));
  auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>());
  mlp_in = mlp->register_module("c_fc", std::make_shared<Linear>(width, shape.intermediate, true,
                                                                 Layout::kInOut, shape.init_std));
  mlp_out = mlp->register_module("c_proj", std::make_shared<Linear>(shape.intermediate, width, true,
                                                                    Layout::kInOut, residual_std));
}

Residual Gpt2Block::forward(Residual residual, ops::LayerPast* past) {
  const auto attend = [this, past](const torch::Tensor& x_BTC) {
    const auto qkv_BTP = attn_in->forward(x_BTC);
    return past != nullptr ? ops::attention_with_past(qkv_BTP, heads, heads, *past)
                           : ops::causal_attention(qkv_BTP, heads, heads);
  };
  residual.delta_BTC = attn_out->forward(run_part(attention_how, attend, ln_1->forward(residual)));
  const auto hidden_BTF = mlp_in->forward(ln_2->forward(residual));
  residual.delta_BTC = mlp_out->forward(ops::gelu_tanh(hidden_BTF));
  return residual;
}

Gpt2::Gpt2(const config::Model& shape) {
  auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>());
  wte_ = transformer->register_module(
      "wte", std::make_shared<Table>(shape.vocab, shape.hidden, shape.init_std));
  wpe_ = transformer->register_module(
      "wpe", std::make_shared<Table>(shape.context, shape.hidden, shape.init_std));
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(std::make_shared<Gpt2Block>(shape));
    list->push_back(blocks_.back());
  }
  transformer->register_module("h", list);
  ln_f_ = transformer->register_module("ln_f",
                                       std::make_shared<LayerNorm>(shape.hidden, shape.norm_eps));
}

void Gpt2::recompute_attention(const Recompute& how) {
  for (auto& block : blocks_) block->attention_how = how;
}

torch::Tensor Gpt2::logits(const torch::Tensor& tokens_BT) {
  Residual residual{ops::embed(tokens_BT, wte_->weight, wpe_->weight), {}};
  for (auto& block : blocks_) {
    const auto run = [&block](Residual in) { return block->forward(std::move(in)); };
    residual = run_block(blocks_how(), run, std::move(residual));
  }
  return ops::linear(ln_f_->forward(residual), wte_->weight, std::nullopt, Layout::kOutIn);
}

torch::Tensor Gpt2::next_logits(const torch::Tensor& tokens_BT, Past& past) {
  past.layers.resize(blocks_.size());
  const auto positions_TC = wpe_->weight.narrow(0, past.length, tokens_BT.size(1));
  Residual residual{ops::embed(tokens_BT, wte_->weight, positions_TC), {}};
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    residual = blocks_[i]->forward(std::move(residual), &past.layers[i]);
  past.length += tokens_BT.size(1);
  const auto last_B1C = ln_f_->forward(residual).slice(1, -1);
  return ops::linear(last_B1C.contiguous(), wte_->weight, std::nullopt, Layout::kOutIn)
      .select(1, 0);
}

}  // namespace trireme::model
