// The pass that all update rules share: a range is cut into blocks that stay in cache from the
// gradient to the weights to compute with. A Rule says how one run of fp32 arrays moves; here is
// what is around it: bounded gradients, moments in bf16, the conversion of the result.
//
// A Rule has kMoments and
//   void run(float grad_scale, const float* grad, float* master, float* const* moments,
//            std::int64_t size) const
#pragma once

#include "trireme/kernels/optimizers.hpp"

#include "blocks.hpp"
#include "half_bits.hpp"
#include "stochastic.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace trireme::kernels::detail {

// Small enough for the block of master weights to be in cache still when it is converted.
inline constexpr std::int64_t kUpdateBlock = 2048;

// Room for what is not in memory as fp32.
struct Scratch {
  float grad[kUpdateBlock];
  float moments[3][kUpdateBlock];
  std::uint32_t words[kUpdateBlock];
};

// NaN stays, as in torch.clamp.
inline void bound_run(const float* __restrict in, float* __restrict out, std::int64_t size,
                      float scale, float bound) {
  for (std::int64_t i = 0; i < size; ++i) {
    const float value = in[i] * scale;
    const float below = value > bound ? bound : value;
    out[i] = below < -bound ? -bound : below;
  }
}

inline void widen_run(const Half* __restrict in, float* __restrict out, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) out[i] = widen_bf16(in[i]);
}

inline void write_work(const WorkRange& work, const float* master, const Run& part) {
  if (work.data == nullptr) return;
  if (work.type == NumberType::kFp32) {
    std::copy_n(master + part.begin, part.size, static_cast<float*>(work.data) + part.begin);
    return;
  }
  const auto narrow = work.type == NumberType::kBf16 ? narrow_bf16_run : narrow_fp16_run;
  narrow(master + part.begin, static_cast<Half*>(work.data) + part.begin, part.size);
}

template <class Rule>
struct Update {
  Rule rule;
  GradientTreatment treatment;
  UpdateRange range;

  void operator()(std::int64_t block) const {
    const Run part = run_of(block, kUpdateBlock, std::ssize(range.master));
    if (treatment.clip_value > 0 || range.moment_type == NumberType::kBf16) {
      update_by_scratch(part);
    } else {
      update_in_place(part);
    }
    write_work(range.work, range.master.data(), part);
  }

 private:
  float sign() const { return treatment.maximize ? -1.0F : 1.0F; }

  void update_in_place(const Run& part) const {
    std::array<float*, 3> moments{};
    for (std::size_t m = 0; m < Rule::kMoments; ++m) {
      moments[m] = static_cast<float*>(range.moments[m]) + part.begin;
    }
    rule.run(sign() * treatment.scale, range.grad.data() + part.begin,
             range.master.data() + part.begin, moments.data(), part.size);
  }

  void update_by_scratch(const Run& part) const {
    Scratch scratch;
    const float* grad = range.grad.data() + part.begin;
    float scale = treatment.scale;
    if (treatment.clip_value > 0) {
      bound_run(grad, scratch.grad, part.size, scale, treatment.clip_value);
      grad = scratch.grad;
      scale = 1;
    }
    const bool narrow = range.moment_type == NumberType::kBf16;
    std::array<float*, 3> moments{};
    std::array<Half*, 3> halves{};
    for (std::size_t m = 0; m < Rule::kMoments; ++m) {
      halves[m] = static_cast<Half*>(range.moments[m]) + part.begin;
      moments[m] = narrow ? scratch.moments[m] : static_cast<float*>(range.moments[m]) + part.begin;
      if (narrow) widen_run(halves[m], moments[m], part.size);
    }
    rule.run(sign() * scale, grad, range.master.data() + part.begin, moments.data(), part.size);
    if (narrow) {
      narrow_moments(moments.data(), halves.data(), Rule::kMoments, part.size, treatment.rounding,
                     range.first_element + static_cast<std::uint64_t>(part.begin), scratch.words);
    }
  }
};

template <class Rule>
void run_update(const Rule& rule, const GradientTreatment& treatment, const UpdateRange& range) {
  ensure(range.grad.size() == range.master.size(), "update: ranges of different length");
  ensure(range.moment_type != NumberType::kFp16, "update: moments are fp32 or bf16");
  for (std::size_t m = 0; m < Rule::kMoments && !range.master.empty(); ++m) {
    ensure(range.moments[m] != nullptr, "update: a moment is missing");
  }
  const Update<Rule> kernel{rule, treatment, range};
  for_each_block(num_blocks(std::ssize(range.master), kUpdateBlock), kernel);
}

}  // namespace trireme::kernels::detail
