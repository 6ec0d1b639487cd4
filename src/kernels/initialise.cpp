#include "trireme/kernels/initialise.hpp"

#include "blocks.hpp"
#include "elementary.hpp"

#include <cmath>

namespace trireme::kernels {

namespace {

// Value i is made from word i % 4 of Philox counter i / 4. Counters are evaluated side by side, one
// per lane.
constexpr std::int64_t kLanes = 64;
constexpr std::int64_t kWords = 4;
constexpr std::int64_t kGroup = kLanes * kWords;

struct Words {
  std::uint32_t word[kWords][kLanes];
};

// base::philox for the counters first, first + 1, ...: the same words, in a form that vectorises.
Words philox_lanes(std::uint64_t key, std::uint64_t first) {
  Words x;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t counter = first + static_cast<std::uint64_t>(lane);
    std::uint32_t x0 = static_cast<std::uint32_t>(counter);
    std::uint32_t x1 = static_cast<std::uint32_t>(counter >> 32);
    std::uint32_t x2 = 0;
    std::uint32_t x3 = 0;
    std::uint32_t k0 = static_cast<std::uint32_t>(key);
    std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * x0;
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * x2;
      x0 = static_cast<std::uint32_t>(p1 >> 32) ^ x1 ^ k0;
      x1 = static_cast<std::uint32_t>(p1);
      x2 = static_cast<std::uint32_t>(p0 >> 32) ^ x3 ^ k1;
      x3 = static_cast<std::uint32_t>(p0);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    x.word[0][lane] = x0;
    x.word[1][lane] = x1;
    x.word[2][lane] = x2;
    x.word[3][lane] = x3;
  }
  return x;
}

// Through a signed integer, which has a vector conversion everywhere; 24 bits, so it is exact.
float unit(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24F;
}

struct Uniform {
  float low;
  float width;

  void operator()(const Words& words, float* out) const {
    for (std::int64_t w = 0; w < kWords; ++w) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        out[lane * kWords + w] = low + width * unit(words.word[w][lane]);
      }
    }
  }
};

// Words 0 and 1 give values 0 and 1 of a counter by Box-Muller, words 2 and 3 the others. The
// radius takes 1 - u, which is never zero.
struct Normal {
  float mean;
  float stddev;

  void operator()(const Words& words, float* out) const {
    for (std::int64_t w = 0; w < kWords; w += 2) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const float radius =
            stddev * std::sqrt(-2.0F * detail::logarithm(1.0F - unit(words.word[w][lane])));
        const auto [cosine, sine] = detail::direction(unit(words.word[w + 1][lane]));
        out[lane * kWords + w] = mean + radius * cosine;
        out[lane * kWords + w + 1] = mean + radius * sine;
      }
    }
  }
};

template <class Distribution>
struct Fill {
  std::span<float> out;
  std::uint64_t key;
  std::int64_t first;
  Distribution distribution;

  // Groups are aligned to the stream, not to the range; only the part inside the range is kept.
  void operator()(std::int64_t index) const {
    const std::int64_t group = first / kGroup + index;
    const auto counter = static_cast<std::uint64_t>(group * kLanes);
    float values[kGroup];
    distribution(philox_lanes(key, counter), values);
    const std::int64_t begin = std::max(group * kGroup, first);
    const std::int64_t end = std::min((group + 1) * kGroup, first + std::ssize(out));
    std::copy(values + (begin - group * kGroup), values + (end - group * kGroup),
              out.data() + (begin - first));
  }
};

template <class Distribution>
void fill(std::span<float> out, std::uint64_t key, std::int64_t first, Distribution distribution) {
  ensure(first >= 0, "a random stream has no values before its first");
  if (out.empty()) return;
  const std::int64_t last_group = (first + std::ssize(out) - 1) / kGroup;
  detail::for_each_block(last_group - first / kGroup + 1,
                         Fill<Distribution>{out, key, first, distribution});
}

}  // namespace

void fill_uniform(std::span<float> out, std::uint64_t key, std::int64_t first, float low,
                  float high) {
  fill(out, key, first, Uniform{low, high - low});
}

void fill_normal(std::span<float> out, std::uint64_t key, std::int64_t first, float mean,
                 float stddev) {
  fill(out, key, first, Normal{mean, stddev});
}

}  // namespace trireme::kernels
