// The uniform stream is compared word by word with base's Philox; the normal one with Box-Muller in
// double.
#include "trireme/kernels/initialise.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include "kernels/kokkos.hpp"
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace trireme::kernels {
namespace {

constexpr std::uint64_t kKey = 0x9e3779b97f4a7c15U;
constexpr std::int64_t kFirsts[] = {0, 1, 255, 256, 257, 1'000'003, std::int64_t{1} << 40};

std::vector<float> uniform(std::int64_t first, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  fill_uniform(values, kKey, first, -1.0F, 3.0F);
  return values;
}

std::vector<float> normal(std::int64_t first, std::int64_t size, float mean = 0, float stddev = 1) {
  std::vector<float> values(static_cast<std::size_t>(size));
  fill_normal(values, kKey, first, mean, stddev);
  return values;
}

std::uint32_t word(std::int64_t index) {
  return philox(kKey, static_cast<std::uint64_t>(index / 4))[static_cast<std::size_t>(index % 4)];
}

TEST(FillUniform, value_i_is_made_from_word_i_of_the_stream) {
  for (const std::int64_t first : kFirsts) {
    const std::vector<float> values = uniform(first, 1000);
    for (std::int64_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(values[static_cast<std::size_t>(i)], -1.0F + 4.0F * unit_float(word(first + i)));
    }
  }
}

TEST(FillNormal, agrees_with_box_muller_in_double) {
  for (const std::int64_t first : kFirsts) {
    const std::vector<float> values = normal(first, 4000);
    for (std::int64_t i = 0; i < 4000; ++i) {
      const std::int64_t even = (first + i) / 2 * 2;
      const double radius = std::sqrt(-2.0 * std::log(1.0 - double{unit_float(word(even))}));
      const double angle = 2.0 * std::numbers::pi * double{unit_float(word(even + 1))};
      const double expected = radius * ((first + i) % 2 == 0 ? std::cos(angle) : std::sin(angle));
      ASSERT_NEAR(values[static_cast<std::size_t>(i)], expected, 5e-7 * (1 + radius));
    }
  }
}

TEST(Fill, any_split_of_a_range_gives_the_same_bits) {
  const std::vector<float> whole_uniform = uniform(5, 10007);
  const std::vector<float> whole_normal = normal(5, 10007, 0.5F, 0.02F);
  for (const std::int64_t piece : {1, 3, 64, 255, 1000}) {
    for (std::int64_t at = 0; at < 10007; at += piece) {
      const std::int64_t size = std::min<std::int64_t>(piece, 10007 - at);
      ASSERT_TRUE(std::ranges::equal(
          uniform(5 + at, size),
          std::span(whole_uniform)
              .subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size))));
      ASSERT_TRUE(std::ranges::equal(
          normal(5 + at, size, 0.5F, 0.02F),
          std::span(whole_normal)
              .subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size))));
    }
  }
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double kurtosis = 0;
};

Moments moments(const std::vector<float>& values) {
  Moments m;
  const auto n = static_cast<double>(values.size());
  for (const float v : values) m.mean += v / n;
  double fourth = 0;
  for (const float v : values) {
    const double square = (v - m.mean) * (v - m.mean);
    m.variance += square / n;
    fourth += square * square / n;
  }
  m.kurtosis = fourth / (m.variance * m.variance);
  return m;
}

TEST(FillNormal, has_the_moments_asked_for) {
  const Moments m = moments(normal(0, 1 << 20, 3.0F, 0.5F));
  EXPECT_NEAR(m.mean, 3.0, 0.002);
  EXPECT_NEAR(m.variance, 0.25, 0.002);
  EXPECT_NEAR(m.kurtosis, 3.0, 0.03);
}

TEST(FillUniform, stays_in_the_half_open_interval_and_fills_it) {
  const std::vector<float> values = uniform(0, 1 << 20);
  const auto [low, high] = std::ranges::minmax(values);
  EXPECT_GE(low, -1.0F);
  EXPECT_LT(high, 3.0F);
  const Moments m = moments(values);
  EXPECT_NEAR(m.mean, 1.0, 0.005);
  EXPECT_NEAR(m.variance, 16.0 / 12.0, 0.005);
}

TEST(FillNormal, streams_of_different_keys_are_unrelated) {
  std::vector<float> a(10000);
  std::vector<float> b(10000);
  fill_normal(a, 1, 0, 0, 1);
  fill_normal(b, 2, 0, 0, 1);
  double product = 0;
  for (std::size_t i = 0; i < a.size(); ++i) product += double{a[i]} * b[i] / 10000;
  EXPECT_LT(std::fabs(product), 0.05);
}

// Weights of a run are these bits on every machine; a change here changes every run's losses.
TEST(FillNormal, first_values_of_a_stream_never_change) {
  const std::vector<float> values = normal(0, 4, 0.0F, 1.0F);
  const std::vector<std::uint32_t> bits{0xbe8d5b4a, 0x3f35df91, 0x3e63697e, 0x3f05b1f4};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), bits[i])
        << std::hex << std::bit_cast<std::uint32_t>(values[i]);
}

TEST(Fill, refuses_a_negative_index) {
  std::vector<float> values(1);
  EXPECT_THROW(fill_normal(values, 1, -1, 0, 1), Error);
}

}  // namespace
}  // namespace trireme::kernels
