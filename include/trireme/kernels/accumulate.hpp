// Element-wise sums of gradients in fp32. The order of operands is the caller's, so that sums are
// the same to the bit however the work was spread.
#pragma once

#include "trireme/kernels/convert.hpp"

#include <span>

namespace trireme::kernels {

// into[i] += in[i].
void add(std::span<float> into, std::span<const float> in);
void add_bf16(std::span<float> into, std::span<const Half> in);
void add_fp16(std::span<float> into, std::span<const Half> in);

// out[i] = a[i] + b[i]; `out` may be `a` or `b`.
void sum(std::span<const float> a, std::span<const float> b, std::span<float> out);

}  // namespace trireme::kernels
