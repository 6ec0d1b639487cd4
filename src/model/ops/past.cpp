#include "trireme/model/ops.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace trireme::model::ops {

namespace {

// [B, T, N D] to [B, N, T, D].
Tensor by_head(const Tensor& x_BTP, std::int64_t heads) {
  return x_BTP.unflatten(-1, {heads, x_BTP.size(-1) / heads}).transpose(1, 2);
}

// Whether query t, behind `before` earlier tokens, sees key s.
Tensor sees(std::int64_t queries, std::int64_t before, const Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  const Tensor query_T1 = at::arange(before, before + queries, options).unsqueeze(1);
  return at::arange(before + queries, options) <= query_T1;
}

}  // namespace

Tensor attention_with_past(const Tensor& qkv_BTP, std::int64_t heads, std::int64_t kv_heads,
                           LayerPast& past) {
  const std::int64_t width = qkv_BTP.size(-1) / (heads + 2 * kv_heads);
  const auto parts =
      qkv_BTP.split_with_sizes({heads * width, kv_heads * width, kv_heads * width}, -1);
  const Tensor q_BHTD = by_head(parts[0], heads);
  const Tensor k_BGTD = by_head(parts[1], kv_heads);
  const Tensor v_BGTD = by_head(parts[2], kv_heads);
  const std::int64_t before = past.keys_BGTD.defined() ? past.keys_BGTD.size(2) : 0;
  past.keys_BGTD = before > 0 ? at::cat({past.keys_BGTD, k_BGTD}, 2) : k_BGTD;
  past.values_BGTD = before > 0 ? at::cat({past.values_BGTD, v_BGTD}, 2) : v_BGTD;
  const std::int64_t queries = q_BHTD.size(2);
  const auto mask = queries > 1 ? std::optional(sees(queries, before, q_BHTD)) : std::nullopt;
  return at::scaled_dot_product_attention(q_BHTD, past.keys_BGTD, past.values_BGTD, mask, 0.0,
                                          false, std::nullopt, heads != kv_heads)
      .transpose(1, 2)
      .flatten(2);
}

}  // namespace trireme::model::ops
