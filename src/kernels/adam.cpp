// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019) and Adam, with
// amsgrad.
#include "trireme/kernels/optimizers.hpp"

#include "update.hpp"

#include <cmath>

namespace trireme::kernels {

namespace {

// The step's scalars: computed in double as PyTorch does, rounded to float once.
struct Scalars {
  explicit Scalars(const AdamRule& rule)
      : decay(rule.decoupled ? static_cast<float>(1.0 - rule.lr * rule.weight_decay) : 1.0F),
        grad_decay(rule.decoupled ? 0.0F : static_cast<float>(rule.weight_decay)),
        lerp_weight(static_cast<float>(1.0 - rule.beta1)),
        beta2(static_cast<float>(rule.beta2)),
        square_weight(static_cast<float>(1.0 - rule.beta2)),
        eps(static_cast<float>(rule.eps)) {
    const auto exponent = static_cast<double>(rule.step);
    root_correction = static_cast<float>(std::sqrt(1.0 - std::pow(rule.beta2, exponent)));
    negative_step = static_cast<float>(-(rule.lr / (1.0 - std::pow(rule.beta1, exponent))));
  }

  float decay;
  float grad_decay;
  float lerp_weight;
  float beta2;
  float square_weight;
  float eps;
  float root_correction;
  float negative_step;
};

// torch.lerp: two forms, so that both ends are exact; beta1 <= 0.5 takes the second.
template <bool kSmallWeight>
float lerp(float from, float to, float weight) {
  return kSmallWeight ? std::fma(weight, to - from, from) : std::fma(weight - 1.0F, to - from, to);
}

// Found by comparing with torch's results bit by bit: its lerp, addcmul and add with a factor fuse
// their last product into the addition, its mul, div and addcdiv do not. std::fma says so on every
// machine; without the instruction it is slow but the same.
template <bool kSmallWeight, bool kDecoupled, bool kAmsgrad>
void adam_run(const Scalars& scalars, float grad_scale, const float* __restrict grad,
              float* __restrict master, float* __restrict exp_avg, float* __restrict exp_avg_sq,
              [[maybe_unused]] float* __restrict max_exp_avg_sq, std::int64_t size) {
  const Scalars s = scalars;  // a local: stores to the ranges cannot alias it
  for (std::int64_t i = 0; i < size; ++i) {
    const float scaled = grad[i] * grad_scale;
    const float g = kDecoupled ? scaled : std::fma(master[i], s.grad_decay, scaled);
    const float m = lerp<kSmallWeight>(exp_avg[i], g, s.lerp_weight);
    const float v = std::fma(s.square_weight * g, g, exp_avg_sq[i] * s.beta2);
    float largest = v;
    if constexpr (kAmsgrad) {
      largest = max_exp_avg_sq[i] > v ? max_exp_avg_sq[i] : v;
      max_exp_avg_sq[i] = largest;
    }
    const float denominator = std::sqrt(largest) / s.root_correction + s.eps;
    const float decayed = kDecoupled ? master[i] * s.decay : master[i];
    master[i] = decayed + (s.negative_step * m) / denominator;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

template <bool kDecoupled, bool kAmsgrad>
struct Adam {
  static constexpr std::size_t kMoments = kAmsgrad ? 3 : 2;
  Scalars scalars;

  void run(float grad_scale, const float* grad, float* master, float* const* moments,
           std::int64_t size) const {
    const bool small = std::fabs(scalars.lerp_weight) < 0.5F;
    const auto loop =
        small ? adam_run<true, kDecoupled, kAmsgrad> : adam_run<false, kDecoupled, kAmsgrad>;
    loop(scalars, grad_scale, grad, master, moments[0], moments[1], moments[2], size);
  }
};

}  // namespace

int num_moments(const AdamRule& rule) { return rule.amsgrad ? 3 : 2; }

void update(const AdamRule& rule, const GradientTreatment& treatment, const UpdateRange& range) {
  ensure(rule.step >= 1, "Adam's steps count from 1");
  const Scalars scalars(rule);
  const bool decoupled = rule.decoupled || rule.weight_decay == 0;
  if (decoupled && rule.amsgrad) {
    detail::run_update(Adam<true, true>{scalars}, treatment, range);
  } else if (decoupled) {
    detail::run_update(Adam<true, false>{scalars}, treatment, range);
  } else if (rule.amsgrad) {
    detail::run_update(Adam<false, true>{scalars}, treatment, range);
  } else {
    detail::run_update(Adam<false, false>{scalars}, treatment, range);
  }
}

}  // namespace trireme::kernels
