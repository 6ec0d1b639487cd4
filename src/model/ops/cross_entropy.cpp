// cross_entropy_sum: log-softmax and the choice of the target in one pass over the logits, forward
// and backward; no tensor of the logits' size is made but their gradient.
//
// V vocabulary, the width of a row.
#include "trireme/model/language_model.hpp"

#include "lanes.hpp"
#include "operator.hpp"
#include <ATen/ops/empty.h>

#include <cmath>

namespace trireme::model::ops {
namespace {

using lanes::Floats;
using lanes::for_lanes;

template <class T>
float log_of_sum_of_exponentials(const T* row, std::int64_t width) {
  Floats top = lanes::all(-INFINITY);
  for_lanes(width, [&](std::int64_t i, auto count) {
    top = lanes::greater_of(lanes::only(lanes::load(row + i, count), count, -INFINITY), top);
  });
  const float greatest = lanes::greatest(top);
  Floats total{};
  for_lanes(width, [&](std::int64_t i, auto count) {
    total += lanes::only(lanes::exp(lanes::load(row + i, count) - greatest), count, 0);
  });
  return greatest + std::log(lanes::sum(total));
}

template <class T>
void row_gradient(const T* row, float log_sum, std::int64_t target, float scale, std::int64_t width,
                  T* gradient) {
  if (target == kIgnoredTarget) {
    std::fill_n(gradient, width, T(0.0F));
    return;
  }
  for_lanes(width, [&](std::int64_t i, auto count) {
    lanes::store(gradient + i, lanes::exp(lanes::load(row + i, count) - log_sum) * scale, count);
  });
  const float probability = std::exp(static_cast<float>(row[target]) - log_sum);
  gradient[target] = T((probability - 1) * scale);
}

void check_targets(const Tensor& targets, std::int64_t vocabulary) {
  const auto* ids = targets.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < targets.numel(); ++i)
    TORCH_CHECK_INDEX(ids[i] == kIgnoredTarget || (ids[i] >= 0 && ids[i] < vocabulary), "target ",
                      ids[i], " is not in a vocabulary of ", vocabulary);
}

std::tuple<Tensor, Tensor> cross_entropy_sum_host(const Tensor& logits_, const Tensor& targets_) {
  const auto logits = logits_.contiguous(), targets = targets_.contiguous();
  const auto V = logits.size(-1), num_rows = targets.numel();
  check_targets(targets, V);
  auto log_sums = at::empty({num_rows}, logits.options().dtype(at::kFloat));
  auto loss = at::empty({}, log_sums.options());
  const auto* target = targets.const_data_ptr<std::int64_t>();
  auto* log_sum = log_sums.mutable_data_ptr<float>();
  by_type(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const T* scores = logits.const_data_ptr<T>();
    for_row_groups(num_rows, [&](std::int64_t, std::int64_t first, std::int64_t end) {
      for (auto row = first; row < end; ++row)
        log_sum[row] = log_of_sum_of_exponentials(scores + row * V, V);
    });
    double total = 0;  // exact enough that the fp32 scalar is rounded once
    for (std::int64_t row = 0; row < num_rows; ++row)
      if (target[row] != kIgnoredTarget)
        total +=
            static_cast<double>(log_sum[row]) - static_cast<double>(scores[row * V + target[row]]);
    *loss.mutable_data_ptr<float>() = static_cast<float>(total);
  });
  return {loss, log_sums};
}

Tensor cross_entropy_sum_backward_host(const Tensor& dloss, const Tensor& logits_,
                                       const Tensor& targets_, const Tensor& log_sums) {
  const auto logits = logits_.contiguous(), targets = targets_.contiguous();
  const auto V = logits.size(-1);
  const auto scale = dloss.item<float>();
  auto dlogits = at::empty_like(logits);
  by_type(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const auto* target = targets.const_data_ptr<std::int64_t>();
    const auto* log_sum = log_sums.const_data_ptr<float>();
    for_row_groups(targets.numel(), [&](std::int64_t, std::int64_t first, std::int64_t end) {
      for (auto row = first; row < end; ++row)
        row_gradient(logits.const_data_ptr<T>() + row * V, log_sum[row], target[row], scale, V,
                     dlogits.mutable_data_ptr<T>() + row * V);
    });
  });
  return dlogits;
}

std::tuple<Tensor, Tensor> call(const Tensor& logits, const Tensor& targets) {
  static const auto op = find<decltype(cross_entropy_sum_host)>("trireme::cross_entropy_sum");
  return op.call(logits, targets);
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& logits,
                               const Tensor& targets) {
    const BelowAutograd guard;
    auto [loss, log_sums] = call(logits, targets);
    context->save_for_backward({logits, targets, log_sums});
    context->mark_non_differentiable({log_sums});
    return {loss, log_sums};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op =
        find<decltype(cross_entropy_sum_backward_host)>("trireme::cross_entropy_sum_backward");
    const BelowAutograd guard;
    const auto saved = context->get_saved_variables();
    return {op.call(gradients[0], saved[0], saved[1], saved[2]), {}};
  }
};

std::tuple<Tensor, Tensor> cross_entropy_sum_autograd(const Tensor& logits, const Tensor& targets) {
  const auto outputs = CrossEntropyFunction::apply(logits, targets);
  return {outputs[0], outputs[1]};
}

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("cross_entropy_sum(Tensor logits, Tensor targets) -> (Tensor loss, Tensor log_sums)");
  library.def(
      "cross_entropy_sum_backward(Tensor dloss, Tensor logits, Tensor targets, Tensor log_sums) -> "
      "Tensor");
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("cross_entropy_sum", cross_entropy_sum_host);
  library.impl("cross_entropy_sum_backward", cross_entropy_sum_backward_host);
}
TORCH_LIBRARY_IMPL(trireme, Autograd, library) {
  library.impl("cross_entropy_sum", cross_entropy_sum_autograd);
}

}  // namespace

Tensor cross_entropy_sum(const Tensor& logits_BTV, const Tensor& targets_BT) {
  return std::get<0>(call(logits_BTV, targets_BT));
}

}  // namespace trireme::model::ops
