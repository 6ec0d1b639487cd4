// linear: products are torch's own; what is added is a weight gradient whose left operand is
// transposed first (twice the speed of letting the product read it by columns in bf16) and a bias
// gradient summed in fp32.
//
// M rows of activations, R columns of the operand that a weight gradient transposes.
#include "operator.hpp"
#include "transpose.hpp"
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

namespace trireme::model::ops {
namespace {

Tensor rows_of(const Tensor& x) { return x.contiguous().view({-1, x.size(-1)}); }

// Columns begin, begin + 1, ... of a matrix as the rows of a new one.
Tensor transposed(const Tensor& in_MR, std::int64_t begin, std::int64_t width) {
  const auto M = in_MR.size(0), R = in_MR.size(1);
  auto out_RM = at::empty({width, M}, in_MR.options());
  const auto* in = in_MR.const_data_ptr<BFloat16>() + begin;
  auto* out = out_RM.mutable_data_ptr<BFloat16>();
  constexpr std::int64_t kTile = 16;
  at::parallel_for(0, (width + kTile - 1) / kTile, 4, [&](std::int64_t first, std::int64_t end) {
    transpose(in + first * kTile, R, out + first * kTile * M, M, M,
              std::min(end * kTile, width) - first * kTile);
  });
  return out_RM;
}

// Returns left' right, by way of whichever transpositions move less: that of `left`, or those of
// `right` and of the product. Columns of a wide head are taken a slice at a time, which bounds the
// copy.
Tensor product_of_transposed(const Tensor& left_MR, const Tensor& right_MN) {
  if (left_MR.scalar_type() != at::kBFloat16) return at::mm(left_MR.t(), right_MN);
  constexpr std::int64_t kSlice = 4096;
  const auto M = left_MR.size(0), R = left_MR.size(1), N = right_MN.size(1);
  if (R * M > N * M + R * N) return transposed(at::mm(transposed(right_MN, 0, N), left_MR), 0, R);
  if (R <= kSlice) return at::mm(transposed(left_MR, 0, R), right_MN);
  auto product_RN = at::empty({R, N}, right_MN.options());
  for (std::int64_t begin = 0; begin < R; begin += kSlice) {
    const auto width = std::min(kSlice, R - begin);
    auto slice_RN = product_RN.narrow(0, begin, width);
    at::mm_out(slice_RN, transposed(left_MR, begin, width), right_MN);
  }
  return product_RN;
}

// Returns x W + bias; the product is added to rows that already hold the bias.
Tensor product_plus_bias(const Tensor& x_MK, const Tensor& weight_KN, const Tensor& bias_N) {
  const auto M = x_MK.size(0), N = weight_KN.size(1);
  auto y_MN = at::empty({M, N}, x_MK.options());
  const auto bytes = bias_N.nbytes();
  auto* rows = static_cast<std::byte*>(y_MN.mutable_data_ptr());
  for (std::int64_t row = 0; row < M; ++row)
    std::memcpy(rows + static_cast<std::size_t>(row) * bytes, bias_N.const_data_ptr(), bytes);
  return at::addmm_out(y_MN, y_MN, x_MK, weight_KN);
}

Tensor column_sums(const Tensor& y_MN) {
  const auto M = y_MN.size(0), N = y_MN.size(1);
  auto partial = at::zeros({num_groups(M), N}, y_MN.options().dtype(at::kFloat));
  auto sums_N = at::empty({N}, y_MN.options());
  by_type(y_MN.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const T* y = y_MN.const_data_ptr<T>();
    float* into = partial.mutable_data_ptr<float>();
    for_row_groups(M, [&](std::int64_t group, std::int64_t first, std::int64_t end) {
      float* sums = into + group * N;
      for (auto row = first; row < end; ++row)
        lanes::for_lanes(N, [&](std::int64_t i, auto count) {
          lanes::store(sums + i, lanes::load(sums + i, count) + lanes::load(y + row * N + i, count),
                       count);
        });
    });
    lanes::for_lanes(N, [&](std::int64_t i, auto count) {
      lanes::Floats total{};
      for (std::int64_t group = 0; group < num_groups(M); ++group)
        total += lanes::load(into + group * N + i, count);
      lanes::store(sums_N.mutable_data_ptr<T>() + i, total, count);
    });
  });
  return sums_N;
}

Tensor linear_host(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, bool out_in) {
  const auto weight_in_out = out_in ? weight.t() : weight;
  const auto x_MK = rows_of(x);
  auto sizes = x.sizes().vec();
  sizes.back() = weight_in_out.size(1);
  return (bias ? product_plus_bias(x_MK, weight_in_out, bias->contiguous())
               : at::mm(x_MK, weight_in_out))
      .view(sizes);
}

std::tuple<Tensor, Tensor, Tensor> linear_backward_host(const Tensor& dy, const Tensor& x,
                                                        const Tensor& weight, bool out_in,
                                                        std::array<bool, 3> wanted) {
  const auto dy_MN = rows_of(dy), x_MK = rows_of(x);
  Tensor dx, dweight, dbias;
  if (wanted[0]) dx = at::mm(dy_MN, out_in ? weight : weight.t()).view(x.sizes());
  if (wanted[1])
    dweight = out_in ? product_of_transposed(dy_MN, x_MK) : product_of_transposed(x_MK, dy_MN);
  if (wanted[2]) dbias = column_sums(dy_MN);
  return {dx, dweight, dbias};
}

Tensor call(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, bool out_in) {
  static const auto op = find<decltype(linear_host)>("trireme::linear");
  return op.call(x, weight, bias, out_in);
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const MaybeTensor& bias, bool out_in) {
    const BelowAutograd guard;
    context->save_for_backward({x, weight});
    context->saved_data["out_in"] = out_in;
    context->saved_data["with_bias"] = bias.has_value();
    return call(x, weight, bias, out_in);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<decltype(linear_backward_host)>("trireme::linear_backward");
    const BelowAutograd guard;
    const auto saved = context->get_saved_variables();
    // Only inputs that are there are counted as edges.
    const bool bias_wanted =
        context->saved_data["with_bias"].toBool() && context->needs_input_grad(2);
    const auto [dx, dweight, dbias] =
        op.call(gradients[0], saved[0], saved[1], context->saved_data["out_in"].toBool(),
                {context->needs_input_grad(0), context->needs_input_grad(1), bias_wanted});
    return {dx, dweight, dbias, {}};
  }
};

Tensor linear_autograd(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                       bool out_in) {
  return LinearFunction::apply(x, weight, bias, out_in);
}

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias, bool out_in) -> Tensor");
  library.def(
      "linear_backward(Tensor dy, Tensor x, Tensor weight, bool out_in, bool[3] wanted) -> "
      "(Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("linear", linear_host);
  library.impl("linear_backward", linear_backward_host);
}
TORCH_LIBRARY_IMPL(trireme, Autograd, library) { library.impl("linear", linear_autograd); }

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, Layout layout) {
  const bool out_in = layout == Layout::kOutIn;
  const auto type = widest({&x, &weight, bias ? &*bias : &x});
  if (x.scalar_type() == type && weight.scalar_type() == type) return call(x, weight, bias, out_in);
  const MaybeTensor wide_bias = bias ? MaybeTensor(as_type(*bias, type)) : std::nullopt;
  return as_type(call(as_type(x, type), as_type(weight, type), wide_bias, out_in), x.scalar_type());
}

}  // namespace trireme::model::ops
