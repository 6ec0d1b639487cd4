// Initial values as pure functions of (key, index): any rank computes any range of a parameter
// alone.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::kernels {

// out[i] = value number first + i of the stream `key`: uniform in [low, high).
void fill_uniform(std::span<float> out, std::uint64_t key, std::int64_t first, float low,
                  float high);

// out[i] = value number first + i of the stream `key`: normal by Box-Muller over Philox words; the
// same for any split of the range.
void fill_normal(std::span<float> out, std::uint64_t key, std::int64_t first, float mean,
                 float stddev);

}  // namespace trireme::kernels
