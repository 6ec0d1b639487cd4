// Sums of squares over fixed blocks of 8 Ki elements. Blocks are added in block order by the
// caller, so the norm is the same to the bit for any number of ranks whose shards end on block
// borders.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::kernels {

inline constexpr std::int64_t kNormBlock = 8192;

// out[b] = sum of in[i]^2 over block b (the last may be short); out.size() = ceil(in.size() /
// kNormBlock). Summed in double over lanes in a fixed order: no finite input overflows or is lost,
// zeros behind the end change nothing, and a block that holds Inf or NaN gives a non-finite sum.
void block_square_sums(std::span<const float> in, std::span<double> out);

}  // namespace trireme::kernels
