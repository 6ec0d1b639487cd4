// Stochastic rounding to bf16 of one block, on the calling thread: random words first, then
// roundings that take 16 bits of a word each.
#pragma once

#include "trireme/base/random.hpp"
#include "trireme/kernels/convert.hpp"

#include "half_bits.hpp"

#include <algorithm>
#include <cstdint>

namespace trireme::kernels::detail {

// Elements that share one drawn key; inside, words come from a cheap mix of key and index.
inline constexpr std::uint64_t kKeyedRun = 1 << 16;

// Two multiplications with xor-shifts between (the 32-bit mixer of Wellons' "hash prospector", with
// half of the key added in the middle): plain arithmetic, which vectorises.
inline void draw_keyed_run(std::uint32_t* __restrict out, std::int64_t size, std::uint64_t key,
                           std::uint32_t first) {
  const auto low = static_cast<std::uint32_t>(key);
  const auto high = static_cast<std::uint32_t>(key >> 32);
  for (std::int64_t i = 0; i < size; ++i) {
    std::uint32_t x = (first + static_cast<std::uint32_t>(i)) ^ low;
    x ^= x >> 16;
    x = x * 0x7feb352dU + high;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    out[i] = x ^ (x >> 16);
  }
}

// out[i] = word number first_element + i of the stream `key`.
inline void draw_run(std::uint32_t* out, std::int64_t size, std::uint64_t key,
                     std::uint64_t first_element) {
  for (std::int64_t done = 0; done < size;) {
    const std::uint64_t element = first_element + static_cast<std::uint64_t>(done);
    const std::uint64_t within = element % kKeyedRun;
    const std::int64_t part = std::min(size - done, static_cast<std::int64_t>(kKeyedRun - within));
    draw_keyed_run(out + done, part, mix(key, element / kKeyedRun),
                   static_cast<std::uint32_t>(within));
    done += part;
  }
}

// Adds 16 random bits below the last bit that stays, then cuts them off. What would become infinite
// is cut off only, and so Inf stays; NaN is made quiet.
inline Half round_stochastic(float value, std::uint32_t random) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sum = bits + (random & 0xffffU);
  const bool overflows = (sum & 0x7f800000U) == 0x7f800000U;
  const std::uint32_t finite = (overflows ? bits : sum) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<Half>(nan ? (bits >> 16) | 0x40U : finite);
}

// Each word serves two moments: the even one takes its lower half.
inline void narrow_by_words(const float* __restrict in, const std::uint32_t* __restrict words,
                            Half* __restrict out, std::int64_t size, std::uint32_t shift) {
  for (std::int64_t i = 0; i < size; ++i) out[i] = round_stochastic(in[i], words[i] >> shift);
}

// Narrows the runs of several moments. `words` has room for `size` words.
inline void narrow_moments(const float* const* in, Half* const* out, std::size_t num_moments,
                           std::int64_t size, std::uint64_t key, std::uint64_t first_element,
                           std::uint32_t* words) {
  for (std::size_t m = 0; m < num_moments; ++m) {
    if (m % 2 == 0) draw_run(words, size, mix(key, m / 2), first_element);
    narrow_by_words(in[m], words, out[m], size, m % 2 == 0 ? 0 : 16);
  }
}

}  // namespace trireme::kernels::detail
