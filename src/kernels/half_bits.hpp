// One fp32 value to and from 16 bits, by integer arithmetic: no rounding mode, flush-to-zero
// setting or instruction set changes a bit. (vcvtneps2bf16 is not used on purpose: it flushes
// subnormals.)
#pragma once

#include "trireme/kernels/convert.hpp"

#include <bit>
#include <cstdint>

namespace trireme::kernels::detail {

inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// NaN is tested first, because adding the rounding term could carry its payload into infinity; it
// is made quiet.
inline Half narrow_bf16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<Half>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

inline float widen_bf16(Half value) { return float_of(std::uint32_t{value} << 16); }

// Same bits as VCVTPS2PH: sign and upper payload of a NaN are kept, and it is made quiet.
inline Half narrow_fp16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<Half>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  if (magnitude >= 0x47800000U) return static_cast<Half>(sign | 0x7c00U);  // 2^16 and above
  if (magnitude >= 0x38800000U) {  // normal in fp16; a carry may reach infinity, as it must
    const std::uint32_t rebiased = magnitude - 0x38000000U;
    return static_cast<Half>(sign | ((rebiased + 0xfffU + ((rebiased >> 13) & 1U)) >> 13));
  }
  if (magnitude < 0x33000000U) return static_cast<Half>(sign);  // below half of the least subnormal
  const std::uint32_t shift = 126U - (magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  const std::uint32_t lost = mantissa & ((1U << shift) - 1U);
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t half = 1U << (shift - 1U);
  return static_cast<Half>(sign |
                           (kept + ((lost > half || (lost == half && (kept & 1U))) ? 1U : 0U)));
}

// Same bits as VCVTPH2PS.
inline float widen_fp16(Half value) {
  const std::uint32_t sign = (std::uint32_t{value} & 0x8000U) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fU;
  const std::uint32_t mantissa = value & 0x3ffU;
  if (exponent == 31U) {
    const std::uint32_t quiet = mantissa == 0 ? 0U : 0x400000U;
    return float_of(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  if (exponent != 0) return float_of(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  if (mantissa == 0) return float_of(sign);
  const auto leading = static_cast<std::uint32_t>(std::bit_width(mantissa)) - 1U;  // 0..9
  return float_of(sign | ((leading + 103U) << 23) | ((mantissa << (23U - leading)) & 0x7fffffU));
}

// One block's worth, on the calling thread; other kernels use them on blocks that are still in
// cache.
void narrow_bf16_run(const float* in, Half* out, std::int64_t size);
void narrow_fp16_run(const float* in, Half* out, std::int64_t size);
void widen_fp16_run(const Half* in, float* out, std::int64_t size);

}  // namespace trireme::kernels::detail
