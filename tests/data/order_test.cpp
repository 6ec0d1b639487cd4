// Properties of the permutation: a bijection for every size, different for every key, without
// visible pattern.
#include "trireme/data/order.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace trireme::data {
namespace {

std::vector<std::uint64_t> images(std::uint64_t size, std::uint64_t key) {
  const Permutation permutation(size, key);
  std::vector<std::uint64_t> out(size);
  for (std::uint64_t i = 0; i < size; ++i) out[i] = permutation(i);
  return out;
}

TEST(Permutation, is_a_bijection_for_every_size_up_to_2000) {
  for (std::uint64_t size = 1; size <= 2000; ++size) {
    std::vector<std::uint64_t> sorted = images(size, size * 77);
    std::ranges::sort(sorted);
    for (std::uint64_t i = 0; i < size; ++i) ASSERT_EQ(sorted[i], i) << "size " << size;
  }
}

TEST(Permutation, stays_inside_and_never_collides_for_large_sizes) {
  for (const std::uint64_t size : {(std::uint64_t{1} << 20) + 1, (std::uint64_t{1} << 32) - 1,
                                   (std::uint64_t{1} << 40) - 12345, std::uint64_t{1} << 40,
                                   (std::uint64_t{1} << 63) + 5, ~std::uint64_t{0}}) {
    const Permutation permutation(size, 9);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 20000; ++i) {
      const std::uint64_t image = permutation(i % 2 == 0 ? i : size - i);
      ASSERT_LT(image, size);
      ASSERT_TRUE(seen.insert(image).second) << "size " << size;
    }
  }
}

TEST(Permutation, differs_by_key_and_by_size) {
  EXPECT_NE(images(1000, 1), images(1000, 2));
  EXPECT_EQ(images(1000, 1), images(1000, 1));
  std::vector<std::uint64_t> prefix = images(1001, 1);
  prefix.pop_back();
  EXPECT_NE(images(1000, 1), prefix);
}

// Chi-squared with cells - 1 degrees of freedom, more than six standard deviations above its mean,
// would be a pattern.
double deviations(const std::vector<double>& counts) {
  const double mean =
      std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double chi = 0;
  for (const double c : counts) chi += (c - mean) * (c - mean) / mean;
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (chi - freedom) / std::sqrt(2 * freedom);
}

TEST(Permutation, puts_every_element_everywhere_equally_often) {
  for (const std::uint64_t size : {2U, 3U, 5U, 16U, 24U, 100U}) {
    std::vector<double> counts(size * size);
    for (std::uint64_t key = 0; key < 2000 * size; ++key) {
      const auto image = images(size, key);
      for (std::uint64_t i = 0; i < size; ++i) ++counts[i * size + image[i]];
    }
    EXPECT_LT(std::fabs(deviations(counts)), 6.0 * std::sqrt(2.0)) << size;
  }
}

TEST(Permutation, neighbours_land_far_apart) {
  const auto image = images(100000, 3);
  double distance = 0;
  for (std::size_t i = 1; i < image.size(); ++i) {
    distance += std::fabs(static_cast<double>(image[i]) - static_cast<double>(image[i - 1]));
  }
  EXPECT_NEAR(distance / 1e5, 1e5 / 3, 500);  // two random points of a line are a third of it apart
}

TEST(Permutation, refuses_no_elements_and_foreign_indices) {
  EXPECT_THROW(Permutation(0, 1), Error);
  EXPECT_THROW(Permutation(5, 1)(5), Error);
}

std::vector<std::uint64_t> epoch(const SampleOrder& order, std::uint64_t number,
                                 std::uint64_t size) {
  std::vector<std::uint64_t> samples(size);
  for (std::uint64_t i = 0; i < size; ++i) samples[i] = order.sample_at(number * size + i);
  return samples;
}

TEST(SampleOrder, every_epoch_has_every_sample_once_in_an_order_of_its_own) {
  const SampleOrder order(1000, 42);
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t number = 0; number < 5; ++number) {
    std::vector<std::uint64_t> samples = epoch(order, number, 1000);
    EXPECT_EQ(order.epoch_of(number * 1000 + 999), number);
    orders.insert(samples);
    std::ranges::sort(samples);
    for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(samples[i], i);
  }
  EXPECT_EQ(orders.size(), 5U);
}

// The key of a seed's epoch is a sum; two seeds must not share epochs shifted against each other.
TEST(SampleOrder, seeds_share_no_epoch) {
  const SampleOrder a(1000, 1);
  const SampleOrder b(1000, 2);
  for (std::uint64_t i = 0; i < 4; ++i) {
    for (std::uint64_t j = 0; j < 4; ++j) EXPECT_NE(epoch(a, i, 1000), epoch(b, j, 1000));
  }
}

TEST(SampleOrder, without_shuffling_is_the_order_of_the_file_again_and_again) {
  const SampleOrder order(3, 42, false);
  EXPECT_EQ(epoch(order, 7, 3), (std::vector<std::uint64_t>{0, 1, 2}));
}

// Runs that were started with an older program go on with the same samples; a change here breaks
// their resume.
TEST(SampleOrder, first_samples_never_change) {
  EXPECT_EQ(epoch(SampleOrder(10, 42), 0, 10),
            (std::vector<std::uint64_t>{7, 9, 8, 2, 1, 3, 6, 5, 4, 0}));
}

TEST(SampleOrder, refuses_no_samples) { EXPECT_THROW(SampleOrder(0, 1), Error); }

}  // namespace
}  // namespace trireme::data
