// One pass over memory per optimizer step: scale the gradient, AdamW, write the weights that the
// network computes with. Update rule: torch.optim.AdamW (Loshchilov & Hutter, "Decoupled weight
// decay regularization", ICLR 2019), with the rounding of PyTorch's single-tensor CPU
// implementation.
#pragma once

#include "trireme/kernels/convert.hpp"

#include <cstdint>
#include <span>

namespace trireme::kernels {

struct AdamWStep {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  std::int64_t step = 1;    // counts from 1; bias correction is computed from it in double
  float grad_scale = 1.0F;  // unscale and clip in one factor, multiplied into each gradient first
};

// The ranges of one parameter (or a run of parameters with equal options); all the same length.
struct AdamWRange {
  std::span<const float> grad;
  std::span<float> master;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
};

// Updates master and moments; the other forms also write the weights to compute with, of the type
// in the name, in the same pass over memory.
void adamw(const AdamWStep& options, const AdamWRange& range);
void adamw_bf16(const AdamWStep& options, const AdamWRange& range, std::span<Half> work);
void adamw_fp16(const AdamWStep& options, const AdamWRange& range, std::span<Half> work);
void adamw_fp32(const AdamWStep& options, const AdamWRange& range, std::span<float> work);

}  // namespace trireme::kernels
