#include "trireme/optim/adamw.hpp"

#include "trireme/kernels/adamw.hpp"

#include <algorithm>

namespace trireme::optim {

double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

void adamw(parallel::Engine& engine, const AdamWOptions& options, double lr, std::int64_t update,
           double grad_scale) {
  kernels::AdamWStep step{
      lr, options.beta1, options.beta2, options.eps, 0, update, static_cast<float>(grad_scale)};
  const bool bf16 = engine.compute() == at::kBFloat16;
  engine.for_each_update([&](const parallel::UpdatePiece& piece) {
    const bool decays = options.decay_all || piece.slot->shape.size() >= 2;
    step.weight_decay = decays ? options.weight_decay : 0;
    const auto moment = [&](std::size_t m) {
      return std::span(reinterpret_cast<float*>(piece.moments[m]), piece.grad.size());
    };
    const kernels::AdamWRange range{piece.grad, piece.master, moment(0), moment(1)};
    if (piece.work == nullptr) {
      kernels::adamw(step, range);
    } else if (bf16) {
      kernels::adamw_bf16(step, range,
                          {reinterpret_cast<kernels::Half*>(piece.work), piece.grad.size()});
    } else {
      kernels::adamw_fp32(step, range, {reinterpret_cast<float*>(piece.work), piece.grad.size()});
    }
  });
}

}  // namespace trireme::optim
