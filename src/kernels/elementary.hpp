// exp, log, sine and cosine in fp32, written so that loops over them vectorise and give the same
// bits whatever the C library. Selections are by comparison, so NaN passes through; no conversion
// of a float to an integer can be undefined.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace trireme::kernels::detail {

// a * b + c, fused where the target has the instruction: for results whose last bit is promised to
// nobody.
inline float multiply_add(float a, float b, float c) {
#ifdef __FMA__
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Adding it rounds to an integer, which then lies in the low bits of the sum.
inline constexpr float kRounder = 0x1.8p23F;

// e^x within 1.5 ulp; 0 below -86.99 (just above where results turn subnormal), infinity
// above 88.72.
inline float exponential(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  x = x < -87.3F ? -87.3F : x;
  x = x > 89.0F ? 89.0F : x;
  const float shifted = multiply_add(x, kLog2E, kRounder);
  const float n = shifted - kRounder;
  float r = multiply_add(n, -kLn2High, x);
  r = multiply_add(n, -kLn2Low, r);
  float p = 1.9875691500e-4F;  // Cephes expf (Moshier)
  p = multiply_add(p, r, 1.3981999507e-3F);
  p = multiply_add(p, r, 8.3334519073e-3F);
  p = multiply_add(p, r, 4.1665795894e-2F);
  p = multiply_add(p, r, 1.6666665459e-1F);
  p = multiply_add(p, r, 5.0000001201e-1F);
  p = multiply_add(p * r, r, r) + 1.0F;
  // 2^(n-1), then once more 2: n reaches 128, whose power has no float. n = -126 gives a zero.
  const std::uint32_t power = (std::bit_cast<std::uint32_t>(shifted) + 126U) << 23;
  return p * std::bit_cast<float>(power) * 2.0F;
}

// ln x within 2 ulp for normal x in (0, 1]; no other argument is meant. Only additions and
// products, each rounded.
inline float logarithm(float x) {
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  // Split x = 2^e m with m in [sqrt(1/2), sqrt(2)).
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - 0x3f3504f3U;
  const auto e = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float f = std::bit_cast<float>((bits & 0x7fffffU) + 0x3f3504f3U) - 1.0F;
  float p = 7.0376836292e-2F;  // Cephes logf
  p = p * f - 1.1514610310e-1F;
  p = p * f + 1.1676998740e-1F;
  p = p * f - 1.2420140846e-1F;
  p = p * f + 1.4249322787e-1F;
  p = p * f - 1.6668057665e-1F;
  p = p * f + 2.0000714765e-1F;
  p = p * f - 2.4999993993e-1F;
  p = p * f + 3.3333331174e-1F;
  const float square = f * f;
  float tail = p * f * square + e * kLn2Low;
  tail = tail - 0.5F * square;
  return (f + tail) + e * kLn2High;
}

struct Direction {
  float cosine;
  float sine;
};

// Cosine and sine of 2 pi t for t in [0, 1), within 2 ulp of one. The reduction to an eighth of a
// turn is exact.
inline Direction direction(float t) {
  const float shifted = 4.0F * t + kRounder;
  const std::uint32_t quarter = std::bit_cast<std::uint32_t>(shifted);
  const float angle = (t - 0.25F * (shifted - kRounder)) * 6.28318531F;
  const float z = angle * angle;
  const float s =
      ((-1.9515295891e-4F * z + 8.3321608736e-3F) * z - 1.6666654611e-1F) * z * angle + angle;
  const float c =
      ((2.443315711809948e-5F * z - 1.388731625493765e-3F) * z + 4.166664568298827e-2F) * z * z -
      0.5F * z + 1.0F;
  const float cosine = (quarter & 1U) ? s : c;
  const float sine = (quarter & 1U) ? c : s;
  const std::uint32_t cosine_sign = ((quarter + 1U) & 2U) << 30;
  const std::uint32_t sine_sign = (quarter & 2U) << 30;
  return {std::bit_cast<float>(std::bit_cast<std::uint32_t>(cosine) ^ cosine_sign),
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(sine) ^ sine_sign)};
}

}  // namespace trireme::kernels::detail
