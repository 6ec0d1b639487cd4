#include "trireme/kernels/adamw.hpp"

#include "blocks.hpp"
#include "half_bits.hpp"

#include <cmath>

namespace trireme::kernels {

namespace {

// Small enough for the block of master weights to be in cache still when it is converted: one pass
// over memory.
constexpr std::int64_t kUpdateBlock = 2048;

// The step's scalars: computed in double as PyTorch does, rounded to float once.
struct Scalars {
  explicit Scalars(const AdamWStep& step)
      : grad_scale(step.grad_scale),
        decay(static_cast<float>(1.0 - step.lr * step.weight_decay)),
        lerp_weight(static_cast<float>(1.0 - step.beta1)),
        beta2(static_cast<float>(step.beta2)),
        square_weight(static_cast<float>(1.0 - step.beta2)),
        eps(static_cast<float>(step.eps)) {
    const auto exponent = static_cast<double>(step.step);
    root_correction = static_cast<float>(std::sqrt(1.0 - std::pow(step.beta2, exponent)));
    negative_step = static_cast<float>(-(step.lr / (1.0 - std::pow(step.beta1, exponent))));
  }

  float grad_scale;
  float decay;
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

// Found by comparing with torch's results bit by bit: its lerp and addcmul fuse their last product
// into the addition, its mul, div and addcdiv do not. std::fma says so on every machine; without
// the instruction it is slow but the same.
template <bool kSmallWeight>
void update_run(const Scalars& scalars, const float* __restrict grad, float* __restrict master,
                float* __restrict exp_avg, float* __restrict exp_avg_sq, std::int64_t size) {
  const Scalars s = scalars;  // a local: stores to the ranges cannot alias it
  for (std::int64_t i = 0; i < size; ++i) {
    const float g = grad[i] * s.grad_scale;
    const float m = lerp<kSmallWeight>(exp_avg[i], g, s.lerp_weight);
    const float v = std::fma(s.square_weight * g, g, exp_avg_sq[i] * s.beta2);
    const float denominator = std::sqrt(v) / s.root_correction + s.eps;
    master[i] = master[i] * s.decay + (s.negative_step * m) / denominator;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

struct Update {
  Scalars scalars;
  AdamWRange range;

  void operator()(std::int64_t block) const { update(block); }

  detail::Run update(std::int64_t block) const {
    const detail::Run part = detail::run_of(block, kUpdateBlock, std::ssize(range.master));
    const auto run = std::fabs(scalars.lerp_weight) < 0.5F ? update_run<true> : update_run<false>;
    run(scalars, range.grad.data() + part.begin, range.master.data() + part.begin,
        range.exp_avg.data() + part.begin, range.exp_avg_sq.data() + part.begin, part.size);
    return part;
  }
};

struct UpdateAndNarrow {
  Update update;
  Half* work;
  void (*narrow)(const float*, Half*, std::int64_t);

  void operator()(std::int64_t block) const {
    const detail::Run part = update.update(block);
    narrow(update.range.master.data() + part.begin, work + part.begin, part.size);
  }
};

struct UpdateAndCopy {
  Update update;
  float* work;

  void operator()(std::int64_t block) const {
    const detail::Run part = update.update(block);
    std::copy_n(update.range.master.data() + part.begin, part.size, work + part.begin);
  }
};

Update checked(const AdamWStep& options, const AdamWRange& range) {
  const std::size_t size = range.master.size();
  ensure(
      range.grad.size() == size && range.exp_avg.size() == size && range.exp_avg_sq.size() == size,
      "adamw: ranges of different length");
  ensure(options.step >= 1, "adamw: steps count from 1");
  return {Scalars(options), range};
}

std::int64_t num_update_blocks(const AdamWRange& range) {
  return detail::num_blocks(std::ssize(range.master), kUpdateBlock);
}

}  // namespace

void adamw(const AdamWStep& options, const AdamWRange& range) {
  detail::for_each_block(num_update_blocks(range), checked(options, range));
}

void adamw_bf16(const AdamWStep& options, const AdamWRange& range, std::span<Half> work) {
  ensure(work.size() == range.master.size(), "adamw_bf16: ranges of different length");
  detail::for_each_block(
      num_update_blocks(range),
      UpdateAndNarrow{checked(options, range), work.data(), detail::narrow_bf16_run});
}

void adamw_fp16(const AdamWStep& options, const AdamWRange& range, std::span<Half> work) {
  ensure(work.size() == range.master.size(), "adamw_fp16: ranges of different length");
  detail::for_each_block(
      num_update_blocks(range),
      UpdateAndNarrow{checked(options, range), work.data(), detail::narrow_fp16_run});
}

void adamw_fp32(const AdamWStep& options, const AdamWRange& range, std::span<float> work) {
  ensure(work.size() == range.master.size(), "adamw_fp32: ranges of different length");
  detail::for_each_block(num_update_blocks(range),
                         UpdateAndCopy{checked(options, range), work.data()});
}

}  // namespace trireme::kernels
