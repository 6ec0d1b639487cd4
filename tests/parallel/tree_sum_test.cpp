#include "trireme/parallel/tree_sum.hpp"

#include "trireme/base/random.hpp"
#include "trireme/parallel/micro_batches.hpp"

#include "kokkos.hpp"
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace trireme::parallel {
namespace {

using Values = std::vector<float>;
using Items = std::vector<Values>;

// Values of many magnitudes and both signs: any other order of addition gives other bits somewhere.
Items random_items(std::size_t items, std::size_t count, std::uint64_t seed = 1) {
  Items result(items, Values(count));
  for (std::size_t item = 0; item < items; ++item) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto words = philox(mix(seed, item), i);
      result[item][i] = std::ldexp(unit_float(words[0]) - 0.5F, static_cast<int>(words[1] % 12));
    }
  }
  return result;
}

float reference(const Items& items, std::size_t first, std::size_t number, std::size_t i) {
  if (number == 1) return items[first][i];
  const std::size_t left = std::bit_floor(number - 1);
  return reference(items, first, left, i) + reference(items, first + left, number - left, i);
}

Values reference(const Items& items) {
  Values sum(items[0].size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = reference(items, 0, items.size(), i);
  return sum;
}

std::vector<const float*> pointers(const Items& items) {
  std::vector<const float*> result;
  for (const Values& values : items) result.push_back(values.data());
  return result;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

constexpr std::size_t kCounts[] = {0, 1, 31, 4095, 4096, 4097, 10'000};

TEST(TreeSum, gives_the_bits_of_a_plain_recursion) {
  for (std::size_t items = 1; items <= 9; ++items) {
    for (const std::size_t count : kCounts) {
      const Items in = random_items(items, count);
      Values out(count, NAN);
      tree_sum(pointers(in), static_cast<std::int64_t>(count), out.data());
      EXPECT_TRUE(same_bits(out, reference(in))) << items << " inputs of " << count;
    }
  }
}

TEST(TreeSum, takes_many_inputs) {
  for (const std::size_t items : {16UL, 33UL, 100UL}) {
    const Items in = random_items(items, 5000);
    Values out(5000);
    tree_sum(pointers(in), 5000, out.data());
    EXPECT_TRUE(same_bits(out, reference(in))) << items;
  }
}

TEST(TreeSum, may_write_over_any_input) {
  for (std::size_t items = 1; items <= 9; ++items) {
    for (std::size_t alias = 0; alias < items; ++alias) {
      Items in = random_items(items, 9000);
      const Values expected = reference(in);
      tree_sum(pointers(in), 9000, in[alias].data());
      EXPECT_TRUE(same_bits(in[alias], expected)) << "input " << alias << " of " << items;
    }
  }
}

TEST(TreeSum, gives_the_same_bits_for_any_split) {
  const Items in = random_items(7, 9999);
  const Values expected = reference(in);
  for (const std::size_t border : {1UL, 17UL, 4096UL, 5001UL}) {
    Values out(9999);
    tree_sum(pointers(in), static_cast<std::int64_t>(border), out.data());
    auto rest = pointers(in);
    for (const float*& start : rest) start += border;
    tree_sum(rest, static_cast<std::int64_t>(9999 - border), out.data() + border);
    EXPECT_TRUE(same_bits(out, expected)) << "split at " << border;
  }
}

// The data of these tests would be useless if order did not matter in it.
TEST(TreeSum, differs_from_a_sum_in_sequence) {
  const Items in = random_items(4, 1000);
  Values sequence = in[0];
  for (std::size_t item = 1; item < 4; ++item) {
    for (std::size_t i = 0; i < 1000; ++i) sequence[i] += in[item][i];
  }
  EXPECT_FALSE(same_bits(sequence, reference(in)));
}

class Counter {
 public:
  Counter(std::size_t items, std::size_t count)
      : memory_(static_cast<std::size_t>(counter_levels(static_cast<std::int64_t>(items))), Values(count, NAN)) {
    std::vector<std::span<float>> levels;
    for (Values& level : memory_) levels.emplace_back(level);
    accumulator_ = TreeAccumulator(std::move(levels), static_cast<std::int64_t>(items));
  }

  Values sum_of(const Items& items) {
    add(items);
    EXPECT_TRUE(accumulator_.complete());
    return total();
  }

  Values sum_that_ends_early(const Items& items) {
    add(items);
    EXPECT_FALSE(accumulator_.complete());
    EXPECT_TRUE(accumulator_.finish());
    EXPECT_FALSE(accumulator_.finish());
    return total();
  }

 private:
  void add(const Items& items) {
    accumulator_.restart();
    for (const Values& item : items) {
      EXPECT_FALSE(accumulator_.complete());
      const auto target = accumulator_.target();
      for (std::size_t i = 0; i < item.size(); ++i) {
        target[i] = accumulator_.adds() ? target[i] + item[i] : item[i];
      }
      accumulator_.advance();
    }
  }
  Values total() const {
    const auto total = accumulator_.total();
    return {total.begin(), total.end()};
  }

  std::vector<Values> memory_;
  TreeAccumulator accumulator_;
};

TEST(TreeAccumulator, adds_one_after_another_to_the_bits_of_a_tree) {
  for (std::size_t items = 1; items <= 17; ++items) {
    const Items in = random_items(items, 300);
    EXPECT_TRUE(same_bits(Counter(items, 300).sum_of(in), reference(in))) << items << " items";
  }
}

TEST(TreeAccumulator, may_end_early_to_the_same_bits) {
  for (std::size_t foreseen = 2; foreseen <= 17; ++foreseen) {
    Counter counter(foreseen, 100);
    for (std::size_t items = 1; items < foreseen; ++items) {
      const Items in = random_items(items, 100);
      EXPECT_TRUE(same_bits(counter.sum_that_ends_early(in), reference(in)))
          << items << " items of " << foreseen;
    }
  }
}

TEST(TreeAccumulator, starts_over_without_a_trace_of_the_step_before) {
  for (std::size_t items = 1; items <= 17; ++items) {
    Counter counter(items, 100);
    counter.sum_of(Items(items, Values(100, INFINITY)));
    const Items in = random_items(items, 100, 2);
    EXPECT_TRUE(same_bits(counter.sum_of(in), reference(in))) << items << " items";
  }
}

}  // namespace
}  // namespace trireme::parallel
