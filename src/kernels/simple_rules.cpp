// SGD, Adagrad and Lion: rules of a few lines. As in adam.cpp, std::fma stands where torch's add
// and addcmul fuse.
#include "trireme/kernels/optimizers.hpp"

#include "update.hpp"

#include <cmath>

namespace trireme::kernels {

namespace {

struct PlainSgd {
  static constexpr std::size_t kMoments = 0;
  float decay;
  float negative_lr;

  void run(float grad_scale, const float* __restrict grad, float* __restrict master,
           float* const* /*moments*/, std::int64_t size) const {
    const float decay_of_all = decay;
    const float step = negative_lr;
    for (std::int64_t i = 0; i < size; ++i) {
      const float g = std::fma(master[i], decay_of_all, grad[i] * grad_scale);
      master[i] = std::fma(g, step, master[i]);
    }
  }
};

struct MomentumSgd {
  static constexpr std::size_t kMoments = 1;
  float decay;
  float negative_lr;
  float momentum;
  float weight;  // of the gradient in the buffer: 1 - dampening
  bool nesterov;
  bool first;

  void run(float grad_scale, const float* grad, float* master, float* const* moments,
           std::int64_t size) const {
    const auto loop = nesterov ? (first ? sweep<true, true> : sweep<true, false>)
                               : (first ? sweep<false, true> : sweep<false, false>);
    loop(*this, grad_scale, grad, master, moments[0], size);
  }

  template <bool kNesterov, bool kFirst>
  static void sweep(const MomentumSgd& rule, float grad_scale, const float* __restrict grad,
                    float* __restrict master, float* __restrict buffer, std::int64_t size) {
    const MomentumSgd s = rule;
    for (std::int64_t i = 0; i < size; ++i) {
      const float g = std::fma(master[i], s.decay, grad[i] * grad_scale);
      const float b = kFirst ? g : std::fma(g, s.weight, buffer[i] * s.momentum);
      const float direction = kNesterov ? std::fma(b, s.momentum, g) : b;
      buffer[i] = b;
      master[i] = std::fma(direction, s.negative_lr, master[i]);
    }
  }
};

struct Adagrad {
  static constexpr std::size_t kMoments = 1;
  float decay;
  float eps;
  float negative_lr;

  void run(float grad_scale, const float* __restrict grad, float* __restrict master,
           float* const* moments, std::int64_t size) const {
    sweep(*this, grad_scale, grad, master, moments[0], size);
  }

  static void sweep(const Adagrad& rule, float grad_scale, const float* __restrict grad,
                    float* __restrict master, float* __restrict sum, std::int64_t size) {
    const Adagrad s = rule;
    for (std::int64_t i = 0; i < size; ++i) {
      const float g = std::fma(master[i], s.decay, grad[i] * grad_scale);
      const float squares = std::fma(g, g, sum[i]);
      sum[i] = squares;
      master[i] = master[i] + (s.negative_lr * g) / (std::sqrt(squares) + s.eps);
    }
  }
};

struct Lion {
  static constexpr std::size_t kMoments = 1;
  float decay;
  float negative_lr;
  float beta1;
  float weight1;  // 1 - beta1
  float beta2;
  float weight2;

  void run(float grad_scale, const float* grad, float* master, float* const* moments,
           std::int64_t size) const {
    sweep(*this, grad_scale, grad, master, moments[0], size);
  }

  static void sweep(const Lion& rule, float grad_scale, const float* __restrict grad,
                    float* __restrict master, float* __restrict exp_avg, std::int64_t size) {
    const Lion s = rule;
    for (std::int64_t i = 0; i < size; ++i) {
      const float g = grad[i] * grad_scale;
      const float m = exp_avg[i];
      const float blend = std::fma(g, s.weight1, m * s.beta1);
      const float sign = static_cast<float>(blend > 0) - static_cast<float>(blend < 0);
      master[i] = std::fma(sign, s.negative_lr, master[i] * s.decay);
      exp_avg[i] = std::fma(g, s.weight2, m * s.beta2);
    }
  }
};

float narrow(double value) { return static_cast<float>(value); }

}  // namespace

int num_moments(const SgdRule& rule) { return rule.momentum == 0 ? 0 : 1; }
int num_moments(const AdagradRule& /*rule*/) { return 1; }
int num_moments(const LionRule& /*rule*/) { return 1; }

void update(const SgdRule& rule, const GradientTreatment& treatment, const UpdateRange& range) {
  const float decay = narrow(rule.weight_decay);
  if (rule.momentum == 0) {
    detail::run_update(PlainSgd{decay, narrow(-rule.lr)}, treatment, range);
  } else {
    detail::run_update(MomentumSgd{decay, narrow(-rule.lr), narrow(rule.momentum),
                                   narrow(1 - rule.dampening), rule.nesterov, rule.step == 1},
                       treatment, range);
  }
}

void update(const AdagradRule& rule, const GradientTreatment& treatment, const UpdateRange& range) {
  ensure(rule.step >= 1, "Adagrad's steps count from 1");
  const double lr = rule.lr / (1 + static_cast<double>(rule.step - 1) * rule.lr_decay);
  detail::run_update(Adagrad{narrow(rule.weight_decay), narrow(rule.eps), narrow(-lr)}, treatment,
                     range);
}

void update(const LionRule& rule, const GradientTreatment& treatment, const UpdateRange& range) {
  detail::run_update(
      Lion{narrow(1 - rule.lr * rule.weight_decay), narrow(-rule.lr), narrow(rule.beta1),
           narrow(1 - rule.beta1), narrow(rule.beta2), narrow(1 - rule.beta2)},
      treatment, range);
}

}  // namespace trireme::kernels
