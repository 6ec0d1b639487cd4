#include "trireme/optim/adamw.hpp"

#include "trireme/kernels/optimizers.hpp"

#include <algorithm>

namespace trireme::optim {

double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

void adamw(parallel::Engine& engine, const AdamWOptions& options, double lr, std::int64_t update,
           double grad_scale) {
  kernels::AdamRule rule{
      .lr = lr, .beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps, .step = update};
  const kernels::GradientTreatment treatment{.scale = static_cast<float>(grad_scale)};
  const auto work_type =
      engine.compute() == at::kBFloat16 ? kernels::NumberType::kBf16 : kernels::NumberType::kFp32;
  engine.for_each_update([&](const parallel::UpdatePiece& piece) {
    const bool decays = options.decay_all || piece.slot->shape.size() >= 2;
    rule.weight_decay = decays ? options.weight_decay : 0;
    kernels::update(rule, treatment,
                    {piece.grad,
                     piece.master,
                     {piece.moments[0], piece.moments[1]},
                     kernels::NumberType::kFp32,
                     {piece.work, work_type},
                     piece.element});
  });
}

}  // namespace trireme::optim
