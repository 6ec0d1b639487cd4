// Activations against their formulas in double, over every magnitude that a float has.
#include "trireme/kernels/activation.hpp"

#include "trireme/base/error.hpp"

#include "kernels/kokkos.hpp"
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace trireme::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// 0.5 (1 + tanh(s)) = 1 / (1 + e^-2s), which loses nothing where tanh is near -1.
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double gelu_argument(double x) {
  return 2 * std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
}

double gelu(double x) { return x * sigmoid(gelu_argument(x)); }

double gelu_slope(double x) {
  if (std::fabs(x) > 50) return x > 0 ? 1 : 0;
  const double s = sigmoid(gelu_argument(x));
  const double inner = 2 * std::sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * x * x);
  return s + x * s * sigmoid(-gelu_argument(x)) * inner;
}

double silu(double x) { return x * sigmoid(x); }

double silu_slope(double x) {
  if (std::fabs(x) > 1000) return x > 0 ? 1 : 0;
  return sigmoid(x) * (1 + x * sigmoid(-x));
}

// Every 4,999th float there is: all exponents and both signs, without NaN; then a dense stretch
// where the functions bend.
std::vector<float> arguments() {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < 0x100000000U; bits += 4999) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!std::isnan(value)) x.push_back(value);
  }
  for (int i = -120000; i <= 120000; ++i) x.push_back(static_cast<float>(i) * 1e-4F);
  for (const float edge : {0.0F, -0.0F, 88.72F, 88.73F, -87.33F, -87.34F, INFINITY})
    x.push_back(edge);
  return x;
}

// The error in units of the last place of the exact value, with a floor where results are
// subnormal.
double error_in_ulps(float value, double exact, double floor) {
  const double distance = std::fabs(value - exact);
  if (distance <= floor || value == exact) return 0;
  const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
  return distance / std::max(ulp, 0x1p-149);
}

template <class Exact>
void expect_near(const std::vector<float>& x, const std::vector<float>& y, Exact exact, double ulps,
                 double floor) {
  double worst = 0;
  float at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_FALSE(std::isnan(y[i])) << x[i];
    const double error = error_in_ulps(y[i], exact(x[i]), floor);
    if (error > worst) {
      worst = error;
      at = x[i];
    }
  }
  EXPECT_LE(worst, ulps) << "at " << at;
}

TEST(GeluTanh, is_within_ulps_of_the_formula_for_every_magnitude) {
  const std::vector<float> x = arguments();
  std::vector<float> y(x.size());
  gelu_tanh(x, y);
  // e^-2s carries the rounding error of 2s, which is relative: at 2s = -87 half an ulp there is 60
  // ulps of the result.
  for (const auto& [low, high, ulps] :
       {std::tuple{-1.0F, INFINITY, 4.0}, {-4.0F, -1.0F, 24.0}, {-INFINITY, -4.0F, 200.0}}) {
    std::vector<float> in, out;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] >= low && x[i] <= high && std::isfinite(x[i])) {
        in.push_back(x[i]);
        out.push_back(y[i]);
      }
    }
    expect_near(in, out, gelu, ulps, 1e-36);
  }
  EXPECT_EQ(y.back(), INFINITY);
}

TEST(GeluTanh, slope_is_near_the_formula_and_finite_everywhere) {
  std::vector<float> x = arguments();
  x.push_back(-INFINITY);
  const std::vector<float> one(x.size(), 1.0F);
  std::vector<float> dx(x.size());
  gelu_tanh_backward(x, one, dx);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(dx[i], gelu_slope(x[i]), 5e-7) << x[i];
  }
}

TEST(SwiGlu, is_within_ulps_of_the_formula_for_every_magnitude) {
  const std::vector<float> x = arguments();
  const std::vector<float> one(x.size(), 1.0F);
  std::vector<float> y(x.size());
  swiglu(x, one, y);
  std::vector<float> in, out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(x[i])) {
      in.push_back(x[i]);
      out.push_back(y[i]);
    }
  }
  expect_near(in, out, silu, 4, 1e-36);
  EXPECT_EQ(y.back(), INFINITY);
}

TEST(SwiGlu, gradients_are_near_the_formula_and_finite_everywhere) {
  const std::vector<float> gate = arguments();
  const std::vector<float> up = numbers(std::ssize(gate), 5);
  const std::vector<float> dy = numbers(std::ssize(gate), 6);
  std::vector<float> d_gate(gate.size());
  std::vector<float> d_up(gate.size());
  swiglu_backward({gate, up}, dy, {d_gate, d_up});
  for (std::size_t i = 0; i < gate.size(); ++i) {
    ASSERT_NEAR(d_gate[i], double{dy[i]} * up[i] * silu_slope(gate[i]), 5e-7) << gate[i];
    if (std::isfinite(gate[i])) {
      ASSERT_NEAR(d_up[i], dy[i] * silu(gate[i]), 1e-34 + 1e-6 * std::fabs(dy[i] * silu(gate[i])))
          << gate[i];
    }
  }
}

TEST(Activation, nan_and_infinities_do_as_promised) {
  const std::vector<float> x{NAN, -INFINITY};
  const std::vector<float> one(2, 1.0F);
  std::vector<float> y(2);
  gelu_tanh(x, y);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(std::isnan(y[1]));
  swiglu(x, one, y);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(std::isnan(y[1]));
  gelu_tanh_backward(x, one, y);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_NEAR(y[1], 0.0F, 1e-34);
}

std::vector<Half> narrowed(const std::vector<float>& wide) {
  std::vector<Half> narrow(wide.size());
  narrow_bf16(wide, narrow);
  return narrow;
}

std::vector<float> widened(const std::vector<Half>& narrow) {
  std::vector<float> wide(narrow.size());
  widen_bf16(narrow, wide);
  return wide;
}

TEST(Activation, bf16_is_the_fp32_result_rounded_once) {
  for (const std::int64_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::vector<Half> a = narrowed(numbers(size, 1, 6.0F));
    const std::vector<Half> b = narrowed(numbers(size, 2, 6.0F));
    const std::vector<Half> c = narrowed(numbers(size, 3, 6.0F));
    std::vector<float> wide(a.size()), second(a.size());
    std::vector<Half> narrow(a.size()), narrow_second(a.size());
    gelu_tanh(widened(a), wide);
    gelu_tanh_bf16(a, narrow);
    EXPECT_EQ(narrow, narrowed(wide));
    gelu_tanh_backward(widened(a), widened(b), wide);
    gelu_tanh_backward_bf16(a, b, narrow);
    EXPECT_EQ(narrow, narrowed(wide));
    swiglu(widened(a), widened(b), wide);
    swiglu_bf16(a, b, narrow);
    EXPECT_EQ(narrow, narrowed(wide));
    const std::vector<float> wide_a = widened(a), wide_b = widened(b);
    swiglu_backward({wide_a, wide_b}, widened(c), {wide, second});
    swiglu_backward_bf16({a, b}, c, {narrow, narrow_second});
    EXPECT_EQ(narrow, narrowed(wide));
    EXPECT_EQ(narrow_second, narrowed(second));
  }
}

TEST(Activation, results_may_overwrite_inputs) {
  const std::vector<float> a = numbers(8193, 1, 5.0F), b = numbers(8193, 2), c = numbers(8193, 3);
  std::vector<float> expected(a.size()), second(a.size());
  gelu_tanh(a, expected);
  std::vector<float> x = a;
  gelu_tanh(x, x);
  EXPECT_EQ(x, expected);
  gelu_tanh_backward(a, b, expected);
  std::vector<float> dy = b;
  gelu_tanh_backward(a, dy, dy);
  EXPECT_EQ(dy, expected);
  swiglu_backward({a, b}, c, {expected, second});
  std::vector<float> gate = a, up = b;
  swiglu_backward({gate, up}, c, {gate, up});
  EXPECT_EQ(gate, expected);
  EXPECT_EQ(up, second);
}

TEST(Activation, refuses_ranges_of_different_length) {
  std::vector<float> three(3), two(2);
  EXPECT_THROW(gelu_tanh(three, two), Error);
  EXPECT_THROW(gelu_tanh_backward(three, two, three), Error);
  EXPECT_THROW(swiglu(two, three, two), Error);
  EXPECT_THROW(swiglu_backward({two, two}, two, {two, three}), Error);
}

}  // namespace
}  // namespace trireme::kernels
