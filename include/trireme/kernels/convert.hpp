// fp32 <-> bf16/fp16, round to nearest even; NaN stays NaN (quiet), infinities, signed zeros and
// subnormals are exact. All kernels here work on host memory, on the calling rank's Kokkos
// execution space; sizes are in elements.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::kernels {

// Storage of a 16-bit float; which one is said by the function's name.
using Half = std::uint16_t;

void narrow_bf16(std::span<const float> in, std::span<Half> out);
void narrow_fp16(std::span<const float> in, std::span<Half> out);
void widen_bf16(std::span<const Half> in, std::span<float> out);
void widen_fp16(std::span<const Half> in, std::span<float> out);

// Rounds to bf16 up or down at random, up with the probability of the part that is cut off: the
// mean of many roundings is the value. Exact for bf16 values; Inf and NaN stay, and finite values
// stay finite. Element i of the range draws bits number first_element + i of the stream `key`.
void narrow_bf16_stochastic(std::span<const float> in, std::span<Half> out, std::uint64_t key,
                            std::uint64_t first_element);

}  // namespace trireme::kernels
