// add_norm: the residual addition and the norm that follows it, forward and backward in one pass
// over each row.
//
// With a bias it is LayerNorm, without one RMSNorm (no mean is taken out). The sum is rounded to
// the storage type before it is normed, as if it had been stored and read again. C width of a row.
#include "lanes.hpp"
#include "operator.hpp"
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace trireme::model::ops {
namespace {

using lanes::Floats;
using lanes::for_lanes;

// What the backward pass keeps of a row.
struct RowStats {
  float mean, inverse_deviation;
};

template <class T>
struct Rows {
  const T *x, *delta, *weight, *bias;  // delta and bias may be null
  T *sum, *normed;
  RowStats* stats;
  std::int64_t width;
  double eps;
};

template <class T>
float add_row(const Rows<T>& rows, const T* x, const T* delta, T* sum) {
  Floats total{};
  for_lanes(rows.width, [&](std::int64_t i, auto count) {
    const auto value = delta ? lanes::load(x + i, count) + lanes::load(delta + i, count)
                             : lanes::load(x + i, count);
    lanes::store(sum + i, value, count);
    total += lanes::load(sum + i, count);
  });
  return lanes::sum(total);
}

template <class T>
float squared_deviation(const T* row, std::int64_t width, float mean) {
  Floats total{};
  for_lanes(width, [&](std::int64_t i, auto count) {
    const auto centred = lanes::only(lanes::load(row + i, count) - mean, count, 0);
    total += centred * centred;
  });
  return lanes::sum(total);
}

template <class T>
void norm_row(const Rows<T>& rows, std::int64_t row) {
  const auto at = row * rows.width;
  T *sum = rows.sum + at, *normed = rows.normed + at;
  const auto width = static_cast<float>(rows.width);
  const float total = add_row(rows, rows.x + at, rows.delta ? rows.delta + at : nullptr, sum);
  const float mean = rows.bias ? total / width : 0;
  const float variance = squared_deviation(sum, rows.width, mean) / width;
  const float inverse = 1 / std::sqrt(variance + static_cast<float>(rows.eps));
  for_lanes(rows.width, [&](std::int64_t i, auto count) {
    auto value =
        (lanes::load(sum + i, count) - mean) * inverse * lanes::load(rows.weight + i, count);
    if (rows.bias) value += lanes::load(rows.bias + i, count);
    lanes::store(normed + i, value, count);
  });
  rows.stats[row] = {mean, inverse};
}

template <class T>
struct RowGradients {
  const T *dnormed, *dsum;  // dsum may be null: nothing but the norm read the sum
  const T *sum, *weight;
  const RowStats* stats;
  T* dx;
  std::int64_t width;
  bool centred;
};

// Adds the row's share to dweight and dbias (fp32; dbias null without a bias).
template <class T>
void norm_row_backward(const RowGradients<T>& rows, std::int64_t row, float* dweight,
                       float* dbias) {
  const auto at = row * rows.width;
  const T *dnormed = rows.dnormed + at, *sum = rows.sum + at;
  const auto [mean, inverse] = rows.stats[row];
  Floats total{}, total_along{};
  for_lanes(rows.width, [&](std::int64_t i, auto count) {
    const auto slope = lanes::load(dnormed + i, count) * lanes::load(rows.weight + i, count);
    total += slope;
    total_along += slope * ((lanes::load(sum + i, count) - mean) * inverse);
  });
  const auto width = static_cast<float>(rows.width);
  const float mean_slope = rows.centred ? lanes::sum(total) / width : 0;
  const float mean_along = lanes::sum(total_along) / width;
  for_lanes(rows.width, [&](std::int64_t i, auto count) {
    const auto dy = lanes::load(dnormed + i, count);
    const auto unit = (lanes::load(sum + i, count) - mean) * inverse;
    auto dx = (dy * lanes::load(rows.weight + i, count) - mean_slope - unit * mean_along) * inverse;
    if (rows.dsum) dx += lanes::load(rows.dsum + at + i, count);
    lanes::store(rows.dx + at + i, dx, count);
    lanes::store(dweight + i, lanes::load(dweight + i, count) + dy * unit, count);
    if (dbias) lanes::store(dbias + i, lanes::load(dbias + i, count) + dy, count);
  });
}

std::tuple<Tensor, Tensor, Tensor> add_norm_host(const Tensor& x_, const MaybeTensor& delta_,
                                                 const Tensor& weight_, const MaybeTensor& bias_,
                                                 double eps) {
  const auto x = x_.contiguous(), weight = weight_.contiguous();
  const auto delta = contiguous(delta_), bias = contiguous(bias_);
  const auto width = x.size(-1), num_rows = x.numel() / width;
  auto sum = at::empty_like(x), normed = at::empty_like(x);
  auto stats = at::empty({num_rows, 2}, x.options().dtype(at::kFloat));
  by_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows{x.const_data_ptr<T>(),
                       data_or_null<T>(delta),
                       weight.const_data_ptr<T>(),
                       data_or_null<T>(bias),
                       sum.mutable_data_ptr<T>(),
                       normed.mutable_data_ptr<T>(),
                       reinterpret_cast<RowStats*>(stats.mutable_data_ptr<float>()),
                       width,
                       eps};
    for_row_groups(num_rows, [&](std::int64_t, std::int64_t first, std::int64_t end) {
      for (auto row = first; row < end; ++row) norm_row(rows, row);
    });
  });
  return {sum, normed, stats};
}

// Adds the groups' fp32 sums in order and rounds once.
template <class T>
Tensor total_over_groups(const Tensor& partial_GC, const Tensor& like) {
  auto total_C = at::empty_like(like);
  const auto groups = partial_GC.size(0), stride = partial_GC.stride(0);
  const float* from = partial_GC.const_data_ptr<float>();
  for_lanes(like.numel(), [&](std::int64_t i, auto count) {
    Floats total{};
    for (std::int64_t group = 0; group < groups; ++group)
      total += lanes::load(from + group * stride + i, count);
    lanes::store(total_C.mutable_data_ptr<T>() + i, total, count);
  });
  return total_C;
}

std::tuple<Tensor, Tensor, Tensor> add_norm_backward_host(const Tensor& dnormed_,
                                                          const MaybeTensor& dsum_,
                                                          const Tensor& sum, const Tensor& stats,
                                                          const Tensor& weight_, bool centred) {
  const auto dnormed = dnormed_.contiguous(), dsum = contiguous(dsum_),
             weight = weight_.contiguous();
  const auto width = sum.size(-1), num_rows = sum.numel() / width;
  auto dx = at::empty_like(sum);
  auto partial = at::zeros({num_groups(num_rows), 2, width}, stats.options());
  Tensor dweight, dbias;
  by_type(sum.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const RowGradients<T> rows{dnormed.const_data_ptr<T>(),
                               data_or_null<T>(dsum),
                               sum.const_data_ptr<T>(),
                               weight.const_data_ptr<T>(),
                               reinterpret_cast<const RowStats*>(stats.const_data_ptr<float>()),
                               dx.mutable_data_ptr<T>(),
                               width,
                               centred};
    float* sums = partial.mutable_data_ptr<float>();
    for_row_groups(num_rows, [&](std::int64_t group, std::int64_t first, std::int64_t end) {
      float* dweight_sums = sums + group * 2 * width;
      for (auto row = first; row < end; ++row)
        norm_row_backward(rows, row, dweight_sums, centred ? dweight_sums + width : nullptr);
    });
    dweight = total_over_groups<T>(partial.select(1, 0), weight);
    if (centred) dbias = total_over_groups<T>(partial.select(1, 1), weight);
  });
  return {dx, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor> call(const Tensor& x, const MaybeTensor& delta,
                                        const Tensor& weight, const MaybeTensor& bias, double eps) {
  static const auto op = find<decltype(add_norm_host)>("trireme::add_norm");
  return op.call(x, delta, weight, bias, eps);
}

struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const MaybeTensor& delta,
                               const Tensor& weight, const MaybeTensor& bias, double eps) {
    const BelowAutograd guard;
    auto [sum, normed, stats] = call(x, delta, weight, bias, eps);
    context->save_for_backward({sum, stats, weight});
    context->saved_data["with_delta"] = delta.has_value();
    context->saved_data["centred"] = bias.has_value();
    context->mark_non_differentiable({stats});
    context->set_materialize_grads(false);
    return {sum, normed, stats};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<decltype(add_norm_backward_host)>("trireme::add_norm_backward");
    const BelowAutograd guard;
    const auto saved = context->get_saved_variables();
    const bool with_delta = context->saved_data["with_delta"].toBool();
    if (!gradients[1].defined())  // only the sum was used
      return {gradients[0], with_delta ? gradients[0] : Tensor(), {}, {}, {}};
    const auto [dx, dweight, dbias] = op.call(gradients[1], maybe(gradients[0]), saved[0], saved[1],
                                              saved[2], context->saved_data["centred"].toBool());
    return {dx, with_delta ? dx : Tensor(), dweight, dbias, {}};
  }
};

std::tuple<Tensor, Tensor, Tensor> add_norm_autograd(const Tensor& x, const MaybeTensor& delta,
                                                     const Tensor& weight, const MaybeTensor& bias,
                                                     double eps) {
  const auto outputs = AddNormFunction::apply(x, delta, weight, bias, eps);
  return {outputs[0], outputs[1], outputs[2]};
}

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def(
      "add_norm(Tensor x, Tensor? delta, Tensor weight, Tensor? bias, float eps) -> (Tensor sum, "
      "Tensor normed, Tensor stats)");
  library.def(
      "add_norm_backward(Tensor dnormed, Tensor? dsum, Tensor sum, Tensor stats, Tensor weight, "
      "bool centred) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("add_norm", add_norm_host);
  library.impl("add_norm_backward", add_norm_backward_host);
}
TORCH_LIBRARY_IMPL(trireme, Autograd, library) { library.impl("add_norm", add_norm_autograd); }

// Returns the sum and the normed rows in the type of x.
std::pair<Tensor, Tensor> add_norm(const Tensor& x, const Tensor& delta, const Tensor& weight,
                                   const Tensor& bias, double eps) {
  const auto type = widest({&x, &delta, &weight, &bias});
  const auto [sum, normed, stats] = call(as_type(x, type), maybe(as_type(delta, type)),
                                         as_type(weight, type), maybe(as_type(bias, type)), eps);
  return {as_type(sum, x.scalar_type()), as_type(normed, x.scalar_type())};
}

}  // namespace

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x_BTC, const Tensor& delta_BTC,
                                         const Tensor& weight_C, const Tensor& bias_C, double eps) {
  return add_norm(x_BTC, delta_BTC, weight_C, bias_C, eps);
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x_BTC, const Tensor& delta_BTC,
                                       const Tensor& weight_C, double eps) {
  return add_norm(x_BTC, delta_BTC, weight_C, {}, eps);
}

}  // namespace trireme::model::ops
