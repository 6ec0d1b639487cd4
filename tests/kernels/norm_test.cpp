#include "trireme/kernels/norm.hpp"

#include "trireme/base/error.hpp"

#include "kernels/kokkos.hpp"
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::kernels {
namespace {

std::vector<double> sums_of(std::span<const float> in) {
  std::vector<double> sums((in.size() + kNormBlock - 1) / kNormBlock);
  block_square_sums(in, sums);
  return sums;
}

TEST(BlockSquareSums, agree_with_long_double_for_every_length) {
  for (const std::int64_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::vector<float> in = numbers(size, 1);
    const std::vector<double> sums = sums_of(in);
    for (std::size_t b = 0; b < sums.size(); ++b) {
      long double exact = 0;
      for (std::size_t i = b * kNormBlock;
           i < std::min<std::size_t>(in.size(), (b + 1) * kNormBlock); ++i) {
        exact += static_cast<long double>(in[i]) * in[i];
      }
      EXPECT_NEAR(sums[b], static_cast<double>(exact), 1e-14 * sums[b]);
    }
  }
}

TEST(BlockSquareSums, a_range_cut_on_block_borders_gives_the_same_bits) {
  const std::vector<float> in = numbers(100003, 2);
  std::vector<double> joined = sums_of(std::span(in).first(3 * kNormBlock));
  for (const double sum : sums_of(std::span(in).subspan(3 * kNormBlock))) joined.push_back(sum);
  EXPECT_EQ(joined, sums_of(in));
}

TEST(BlockSquareSums, zeros_behind_the_end_change_nothing) {
  std::vector<float> in = numbers(5001, 3);
  const std::vector<double> short_block = sums_of(in);
  in.resize(kNormBlock);
  EXPECT_EQ(sums_of(in), short_block);
}

TEST(BlockSquareSums, neither_large_nor_small_finite_numbers_are_lost) {
  const std::vector<float> large(kNormBlock, std::numeric_limits<float>::max());
  const double max = std::numeric_limits<float>::max();
  EXPECT_NEAR(sums_of(large)[0] / max / max, kNormBlock, 1e-10 * kNormBlock);
  const std::vector<float> small(kNormBlock, 1e-30F);
  EXPECT_NEAR(sums_of(small)[0] / double{1e-30F} / double{1e-30F}, kNormBlock, 1e-10 * kNormBlock);
}

TEST(BlockSquareSums, one_value_that_is_not_finite_marks_its_block_only) {
  for (const float poison : {INFINITY, -INFINITY, NAN}) {
    for (const std::size_t at : {0U, 8191U, 12345U, 20000U}) {
      std::vector<float> in = numbers(20001, 4);
      in[at] = poison;
      const std::vector<double> sums = sums_of(in);
      for (std::size_t b = 0; b < sums.size(); ++b) {
        EXPECT_EQ(std::isfinite(sums[b]), b != at / kNormBlock) << at;
      }
    }
  }
}

TEST(BlockSquareSums, refuse_a_wrong_number_of_sums) {
  const std::vector<float> in(kNormBlock + 1);
  std::vector<double> one(1);
  EXPECT_THROW(block_square_sums(in, one), Error);
}

}  // namespace
}  // namespace trireme::kernels
