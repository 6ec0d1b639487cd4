// The differentiable operators that the models are made of. Each is registered with torch as
// trireme::<name> and trireme::<name>_backward, because the sharding engine must see every operator
// that reads a weight.
//
// They accept fp32 and bf16 on the host, compute in fp32 between load and store, and give the same
// bits on every run and for every number of threads that torch's own products do.
// tests/model/ops_test.cpp holds each against its definition in plain ATen.
//
// The activations are the kernels room's: they need a kernels::Runtime alive.
//
// Shape suffixes: B batch, T sequence, C width of the residual stream, H query heads, G key-value
// heads, D head width, P = (H + 2 G) D packed queries, keys and values, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace trireme::model::ops {

using at::Tensor;

// Which way a weight matrix is stored: GPT-2's Conv1D has [in, out], torch::nn::Linear has [out,
// in].
enum class Layout : bool { kInOut, kOutIn };

// Returns x W (+ bias).
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              Layout layout);

// Returns {x + delta, norm(x + delta)}; an undefined delta counts as zero. One pass in place of an
// addition and a norm.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x_BTC, const Tensor& delta_BTC,
                                         const Tensor& weight_C, const Tensor& bias_C, double eps);
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x_BTC, const Tensor& delta_BTC,
                                       const Tensor& weight_C, double eps);

// Returns gelu(x), tanh form.
Tensor gelu_tanh(const Tensor& x);

// Returns silu(gate) * up.
Tensor swiglu(const Tensor& gate, const Tensor& up);

// Returns queries and keys turned by their position's angles, packed with the values. cos_sin_TD
// holds the cosines in its first D/2 columns and the sines in the others, fp32 (see rotary_table).
Tensor pack_rotated(const Tensor& q_BTHD, const Tensor& k_BTGD, const Tensor& v_BTGD,
                    const Tensor& cos_sin_TD);
Tensor rotary_table(std::int64_t length, std::int64_t head_width, double theta);

// Returns softmax(q k' / sqrt(D)) v over the present and earlier positions, heads side by side as
// [B, T, H D].
Tensor causal_attention(const Tensor& qkv_BTP, std::int64_t heads, std::int64_t kv_heads);

// Keys and values of the tokens that one layer has seen.
struct LayerPast {
  Tensor keys_BGTD, values_BGTD;
};

// The same as causal_attention for tokens that follow those of `past`, to which they are added.
// Without gradients.
Tensor attention_with_past(const Tensor& qkv_BTP, std::int64_t heads, std::int64_t kv_heads,
                           LayerPast& past);

// Returns tokens' rows of `table`, plus the positions' rows where `positions_TC` is defined.
Tensor embed(const Tensor& tokens_BT, const Tensor& table_VC, const Tensor& positions_TC = {});

// Returns the fp32 sum of -log softmax(logits)[target]; targets of -100 add nothing.
Tensor cross_entropy_sum(const Tensor& logits_BTV, const Tensor& targets_BT);

}  // namespace trireme::model::ops
