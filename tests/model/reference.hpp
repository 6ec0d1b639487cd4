// The operators of trireme/model/ops.hpp in plain ATen: what the fused ones must agree with.
#pragma once

#include "trireme/model/ops.hpp"

#include <torch/torch.h>

namespace reference {

using torch::Tensor;
using trireme::model::ops::Layout;

inline Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                     Layout layout) {
  const auto y = x.matmul(layout == Layout::kInOut ? weight : weight.t());
  return bias ? y + *bias : y;
}

inline std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& delta,
                                                const Tensor& weight, const Tensor& bias,
                                                double eps) {
  const auto sum = delta.defined() ? x + delta : x;
  return {sum, torch::layer_norm(sum, {sum.size(-1)}, weight, bias, eps)};
}

inline std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& delta,
                                              const Tensor& weight, double eps) {
  const auto sum = delta.defined() ? x + delta : x;
  const auto wide = sum.to(torch::kFloat);
  const auto normed = wide * torch::rsqrt(wide.square().mean(-1, true) + eps);
  return {sum, (normed * weight.to(torch::kFloat)).to(x.scalar_type())};
}

inline Tensor gelu_tanh(const Tensor& x) { return torch::gelu(x, "tanh"); }

inline Tensor swiglu(const Tensor& gate, const Tensor& up) { return torch::silu(gate) * up; }

inline Tensor rotated(const Tensor& x_BTHD, const Tensor& cos_sin_TD) {
  const auto halves = x_BTHD.to(torch::kFloat).chunk(2, -1);
  const auto table = cos_sin_TD.unsqueeze(1).chunk(2, -1);
  return torch::cat({halves[0] * table[0] - halves[1] * table[1],
                     halves[1] * table[0] + halves[0] * table[1]},
                    -1)
      .to(x_BTHD.scalar_type());
}

inline Tensor pack_rotated(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& cos_sin_TD) {
  return torch::cat({rotated(q, cos_sin_TD), rotated(k, cos_sin_TD), v}, 2).flatten(2);
}

inline Tensor causal_attention(const Tensor& qkv_BTP, std::int64_t heads, std::int64_t kv_heads) {
  const auto B = qkv_BTP.size(0), T = qkv_BTP.size(1), D = qkv_BTP.size(2) / (heads + 2 * kv_heads);
  const auto parts = qkv_BTP.view({B, T, heads + 2 * kv_heads, D})
                         .transpose(1, 2)
                         .split_with_sizes({heads, kv_heads, kv_heads}, 1);
  const auto k = parts[1].repeat_interleave(heads / kv_heads, 1),
             v = parts[2].repeat_interleave(heads / kv_heads, 1);
  auto scores =
      parts[0].matmul(k.transpose(2, 3)).to(torch::kFloat) / std::sqrt(static_cast<double>(D));
  scores = scores.masked_fill(torch::ones({T, T}, torch::kBool).triu(1), -INFINITY);
  return scores.softmax(-1)
      .to(qkv_BTP.scalar_type())
      .matmul(v)
      .transpose(1, 2)
      .reshape({B, T, heads * D});
}

inline Tensor embed(const Tensor& tokens_BT, const Tensor& table_VC,
                    const Tensor& positions_TC = {}) {
  const auto rows = torch::embedding(table_VC, tokens_BT);
  return positions_TC.defined() ? rows + positions_TC.slice(0, 0, tokens_BT.size(1)) : rows;
}

inline Tensor cross_entropy_sum(const Tensor& logits_BTV, const Tensor& targets_BT) {
  return torch::cross_entropy_loss(logits_BTV.flatten(0, 1).to(torch::kFloat), targets_BT.flatten(),
                                   {}, at::Reduction::Sum);
}

}  // namespace reference
