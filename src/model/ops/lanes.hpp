// Sixteen floats at a time, for the loops of the operators: the compiler turns them into whatever
// vectors the target has. Sums over lanes have one fixed order, so results do not depend on the
// vector width.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace trireme::model::lanes {

inline constexpr std::int64_t kLanes = 16;
using All = std::integral_constant<std::int64_t, kLanes>;

using Floats = float __attribute__((vector_size(64)));
using Words = std::uint32_t __attribute__((vector_size(64)));
using Integers = std::int32_t __attribute__((vector_size(64)));
using Halves = std::uint16_t __attribute__((vector_size(32)));

inline Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline Halves load_halves(const c10::BFloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return halves;
}

inline Floats load(const c10::BFloat16* from) {
  return std::bit_cast<Floats>(__builtin_convertvector(load_halves(from), Words) << 16);
}

// Returns the bf16 nearest to each float (ties to even); NaN stays NaN. The machine's own
// instruction, where there is one, makes zeros of numbers below 1e-38.
inline Halves to_bf16(Floats v) {
#ifdef __AVX512BF16__
  return std::bit_cast<Halves>(_mm512_cvtneps_pbh(std::bit_cast<__m512>(v)));
#else
  const auto bits = std::bit_cast<Words>(v);
  const Words nearest = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return __builtin_convertvector(
      (bits & 0x7fffffffU) > 0x7f800000U ? (bits >> 16) | 0x40U : nearest, Halves);
#endif
}

// Returns words that hold `low` in their lower and `high` in their upper half.
inline Words paired(Halves low, Halves high) {
  return __builtin_convertvector(low, Words) | __builtin_convertvector(high, Words) << 16;
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

inline void store(c10::BFloat16* to, Floats v) {
  const auto halves = to_bf16(v);
  std::memcpy(to, &halves, sizeof halves);
}

// fp16: to the nearest, ties to even, as c10::Half does it one at a time. Masked forms, because
// GCC 12 warns of the others' undefined source.
inline Floats load(const c10::Half* from) {
#ifdef __AVX512F__
  __m256i halves;
  std::memcpy(&halves, from, sizeof halves);
  return std::bit_cast<Floats>(_mm512_maskz_cvtph_ps(0xffff, halves));
#else
  Floats v;
  for (std::int64_t i = 0; i < kLanes; ++i) v[i] = static_cast<float>(from[i]);
  return v;
#endif
}

inline void store(c10::Half* to, Floats v) {
#ifdef __AVX512F__
  const __m256i halves =
      _mm512_maskz_cvtps_ph(0xffff, std::bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(static_cast<void*>(to), &halves, sizeof halves);
#else
  for (std::int64_t i = 0; i < kLanes; ++i) to[i] = static_cast<c10::Half>(v[i]);
#endif
}

// The same for the first `count` lanes; what lies behind them in memory is neither read nor
// written.
template <class T>
Floats load(const T* from, std::int64_t count) {
  T whole[kLanes] = {};
  std::memcpy(static_cast<void*>(whole), from, static_cast<std::size_t>(count) * sizeof(T));
  return load(whole);
}
template <class T>
Floats load(const T* from, All) {
  return load(from);
}
template <class T>
void store(T* to, Floats v, std::int64_t count) {
  T whole[kLanes];
  store(whole, v);
  std::memcpy(static_cast<void*>(to), whole, static_cast<std::size_t>(count) * sizeof(T));
}
template <class T>
void store(T* to, Floats v, All) {
  store(to, v);
}

// Calls body(i, count) for i = 0, 16, 32, ...; count is All but for a shorter rest.
template <class Body>
void for_lanes(std::int64_t size, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, All{});
  if (i < size) body(i, size - i);
}

inline Floats all(float value) { return Floats{} + value; }
inline Floats greater_of(Floats a, Floats b) { return a > b ? a : b; }

// Returns v with the lanes from `count` on replaced.
inline Floats only(Floats v, std::int64_t count, float otherwise) {
  constexpr Integers kIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return kIndex < static_cast<std::int32_t>(count) ? v : all(otherwise);
}
inline Floats only(Floats v, All, float) { return v; }

inline Floats swapped(Floats v, int distance) {
  constexpr Integers kIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return __builtin_shuffle(v, kIndex ^ distance);
}
inline float sum(Floats v) {
  for (int distance : {8, 4, 2, 1}) v += swapped(v, distance);
  return v[0];
}
inline float greatest(Floats v) {
  for (int distance : {8, 4, 2, 1}) v = greater_of(v, swapped(v, distance));
  return v[0];
}

// Returns e^x within 2 units in the last place for x in [-87, 88]; smaller x give about 1e-38, NaN
// stays NaN.
inline Floats exp(Floats x) {
  x = x < -87.0F ? all(-87.0F) : x;
  x = x > 88.0F ? all(88.0F) : x;
  constexpr float kRound = 0x1.8p23F;  // adding and subtracting it rounds to an integer
  const Floats shifted = x * 1.44269504088896341F + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  Floats p = all(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  // The low bits of `shifted` hold n; moved to the exponent they multiply by 2^n.
  return std::bit_cast<Floats>(std::bit_cast<Words>(p) + (std::bit_cast<Words>(shifted) << 23));
}

// Transposes 16 rows of 16 words: four rounds of a perfect shuffle between the upper and the lower
// half of the rows.
inline void transpose(Words (&rows)[kLanes]) {
  constexpr Words kLow = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  constexpr Words kHigh = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  for (int round = 0; round < 4; ++round) {
    Words next[kLanes];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + 8], kLow);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + 8], kHigh);
    }
    std::memcpy(rows, next, sizeof next);
  }
}

}  // namespace trireme::model::lanes
