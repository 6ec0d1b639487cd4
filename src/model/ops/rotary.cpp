// pack_rotated: turns the heads of queries and keys by their position's angles and lays q, k and v
// side by side, as causal_attention reads them. Halves of a head are rotated against each other, as
// in transformers' Llama.
//
// Shape suffixes: ops.hpp. N heads of one of the three parts.
#include "lanes.hpp"
#include "operator.hpp"
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>

namespace trireme::model::ops {
namespace {

// Turns one head by the angles whose cosines and sines `cos_sin` holds; direction -1 turns back.
template <class T>
void rotate(const T* in, T* out, const float* cos_sin, std::int64_t head_width, float direction) {
  const auto half = head_width / 2;
  lanes::for_lanes(half, [&](std::int64_t i, auto count) {
    const auto a = lanes::load(in + i, count), b = lanes::load(in + half + i, count);
    const auto cosine = lanes::load(cos_sin + i, count);
    const auto sine = lanes::load(cos_sin + half + i, count) * direction;
    lanes::store(out + i, a * cosine - b * sine, count);
    lanes::store(out + half + i, b * cosine + a * sine, count);
  });
}

struct Split {
  std::int64_t heads, kv_heads, head_width;
  std::int64_t packed() const { return (heads + 2 * kv_heads) * head_width; }
};

// The pointers of one position's parts; the packed row is theirs laid end to end.
template <class T>
struct Position {
  T *q, *k, *v;
};

template <class From, class To>
void turn_position(Position<From> from, Position<To> to, const float* cos_sin, const Split& split,
                   float direction) {
  const auto D = split.head_width;
  for (std::int64_t n = 0; n < split.heads; ++n)
    rotate(from.q + n * D, to.q + n * D, cos_sin, D, direction);
  for (std::int64_t n = 0; n < split.kv_heads; ++n)
    rotate(from.k + n * D, to.k + n * D, cos_sin, D, direction);
  std::memcpy(to.v, from.v, static_cast<std::size_t>(split.kv_heads * D) * sizeof(From));
}

template <class T>
Position<T> packed_position(T* row, const Split& split) {
  return {row, row + split.heads * split.head_width,
          row + (split.heads + split.kv_heads) * split.head_width};
}

template <class T>
Position<T> split_position(T* q, T* k, T* v, std::int64_t row, const Split& split) {
  const auto kv_width = split.kv_heads * split.head_width;
  return {q + row * split.heads * split.head_width, k + row * kv_width, v + row * kv_width};
}

Tensor pack_rotated_host(const Tensor& q_, const Tensor& k_, const Tensor& v_,
                         const Tensor& cos_sin_) {
  const auto q = q_.contiguous(), k = k_.contiguous(), v = v_.contiguous(),
             cos_sin = cos_sin_.contiguous();
  const Split split{q.size(2), k.size(2), q.size(3)};
  const auto B = q.size(0), T = q.size(1);
  TORCH_CHECK(cos_sin.size(0) >= T && cos_sin.size(1) == split.head_width,
              "the rotary table is too small");
  auto packed = at::empty({B, T, split.packed()}, q.options());
  by_type(q.scalar_type(), [&](auto type) {
    using S = decltype(type);
    for_row_groups(B * T, [&](std::int64_t, std::int64_t first, std::int64_t end) {
      for (auto row = first; row < end; ++row)
        turn_position(split_position(q.const_data_ptr<S>(), k.const_data_ptr<S>(),
                                     v.const_data_ptr<S>(), row, split),
                      packed_position(packed.mutable_data_ptr<S>() + row * split.packed(), split),
                      cos_sin.const_data_ptr<float>() + row % T * split.head_width, split, 1);
    });
  });
  return packed;
}

std::tuple<Tensor, Tensor, Tensor> pack_rotated_backward_host(const Tensor& dpacked_,
                                                              const Tensor& cos_sin_,
                                                              std::int64_t heads,
                                                              std::int64_t kv_heads) {
  const auto dpacked = dpacked_.contiguous(), cos_sin = cos_sin_.contiguous();
  const Split split{heads, kv_heads, cos_sin.size(1)};
  const auto B = dpacked.size(0), T = dpacked.size(1);
  auto dq = at::empty({B, T, heads, split.head_width}, dpacked.options());
  auto dk = at::empty({B, T, kv_heads, split.head_width}, dpacked.options());
  auto dv = at::empty_like(dk);
  by_type(dpacked.scalar_type(), [&](auto type) {
    using S = decltype(type);
    for_row_groups(B * T, [&](std::int64_t, std::int64_t first, std::int64_t end) {
      for (auto row = first; row < end; ++row)
        turn_position(packed_position(dpacked.const_data_ptr<S>() + row * split.packed(), split),
                      split_position(dq.mutable_data_ptr<S>(), dk.mutable_data_ptr<S>(),
                                     dv.mutable_data_ptr<S>(), row, split),
                      cos_sin.const_data_ptr<float>() + row % T * split.head_width, split, -1);
    });
  });
  return {dq, dk, dv};
}

Tensor call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos_sin) {
  static const auto op = find<decltype(pack_rotated_host)>("trireme::pack_rotated");
  return op.call(q, k, v, cos_sin);
}

struct PackRotatedFunction : torch::autograd::Function<PackRotatedFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& cos_sin) {
    const BelowAutograd guard;
    context->save_for_backward({cos_sin});
    context->saved_data["heads"] = q.size(2);
    context->saved_data["kv_heads"] = k.size(2);
    return call(q, k, v, cos_sin);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op =
        find<decltype(pack_rotated_backward_host)>("trireme::pack_rotated_backward");
    const BelowAutograd guard;
    const auto [dq, dk, dv] =
        op.call(gradients[0], context->get_saved_variables()[0],
                context->saved_data["heads"].toInt(), context->saved_data["kv_heads"].toInt());
    return {dq, dk, dv, {}};
  }
};

Tensor pack_rotated_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& cos_sin) {
  return PackRotatedFunction::apply(q, k, v, cos_sin);
}

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("pack_rotated(Tensor q, Tensor k, Tensor v, Tensor cos_sin) -> Tensor");
  library.def(
      "pack_rotated_backward(Tensor dpacked, Tensor cos_sin, int heads, int kv_heads) -> (Tensor, "
      "Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("pack_rotated", pack_rotated_host);
  library.impl("pack_rotated_backward", pack_rotated_backward_host);
}
TORCH_LIBRARY_IMPL(trireme, Autograd, library) {
  library.impl("pack_rotated", pack_rotated_autograd);
}

}  // namespace

Tensor pack_rotated(const Tensor& q_BTHD, const Tensor& k_BTGD, const Tensor& v_BTGD,
                    const Tensor& cos_sin_TD) {
  return call(q_BTHD, k_BTGD, v_BTGD, cos_sin_TD);
}

Tensor rotary_table(std::int64_t length, std::int64_t head_width, double theta) {
  const auto wide = at::TensorOptions().dtype(at::kFloat);
  const auto exponent = at::arange(0, head_width, 2, wide) / static_cast<double>(head_width);
  const auto angle_TD = at::outer(at::arange(length, wide), at::pow(theta, exponent).reciprocal());
  return at::cat({angle_TD.cos(), angle_TD.sin()}, 1);
}

}  // namespace trireme::model::ops
