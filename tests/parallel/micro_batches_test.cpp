// The order of addition, followed with symbols: what a strategy adds is written down as an expression, and the expression
// must be that of a binary counter over the micro-batches, whoever computed them.
#include "trireme/parallel/micro_batches.hpp"

#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::parallel {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMostMicroBatches = 24;
constexpr int kMostRanks = 8;

std::string sum_of(const std::string& a, const std::string& b) {
  std::string sum = "(";
  sum.append(a).append("+").append(b).append(")");
  return sum;
}

// A binary counter, literally: equal halves join as soon as both are there, the rest from the lowest up.
std::string counter(const std::vector<std::string>& items) {
  std::vector<std::pair<std::size_t, std::string>> stack;
  for (const std::string& item : items) {
    stack.emplace_back(1, item);
    while (stack.size() > 1 && stack[stack.size() - 2].first == stack.back().first) {
      const auto right = std::move(stack.back());
      stack.pop_back();
      stack.back() = {stack.back().first + right.first, sum_of(stack.back().second, right.second)};
    }
  }
  std::string sum = stack.back().second;
  for (std::size_t i = stack.size() - 1; i-- > 0;) sum = sum_of(stack[i].second, sum);
  return sum;
}

std::string reference(std::int64_t micro_batches) {
  std::vector<std::string> items;
  for (std::int64_t m = 0; m < micro_batches; ++m) items.push_back(std::to_string(m));
  return counter(items);
}

// What the engine does: a rank's micro-batches of a round, then the ranks, then the rounds.
std::string emulate(ReduceAt reduce_at, std::int64_t micro_batches, int ranks) {
  std::vector<Assignment> assignments;
  for (int r = 0; r < ranks; ++r) {
    assignments.push_back(assign_micro_batches(reduce_at, micro_batches, ranks, Rank(r)));
  }
  std::vector<std::string> rounds;
  for (std::size_t round = 0; round < assignments[0].rounds.size(); ++round) {
    std::vector<std::string> sums;
    for (const Assignment& assignment : assignments) {
      std::vector<std::string> items;
      for (const std::int64_t m : assignment.rounds.at(round)) items.push_back(std::to_string(m));
      sums.push_back(items.empty() ? "0" : counter(items));
    }
    rounds.push_back(counter(sums));
  }
  return counter(rounds);
}

class AssignmentOf : public ::testing::TestWithParam<ReduceAt> {};

TEST_P(AssignmentOf, gives_every_micro_batch_to_one_rank_once) {
  for (std::int64_t micro_batches = 1; micro_batches <= kMostMicroBatches; ++micro_batches) {
    for (int ranks = 1; ranks <= kMostRanks && ranks <= micro_batches; ++ranks) {
      std::map<std::int64_t, int> times;
      for (int r = 0; r < ranks; ++r) {
        const Assignment assignment = assign_micro_batches(GetParam(), micro_batches, ranks, Rank(r));
        const Assignment first = assign_micro_batches(GetParam(), micro_batches, ranks, Rank(0));
        EXPECT_EQ(assignment.rounds.size(), first.rounds.size()) << "ranks reduce together";
        EXPECT_EQ(assignment.inexact, first.inexact);
        EXPECT_EQ(assignment.longest_round, first.longest_round);
        EXPECT_FALSE(assignment.rounds[0].empty());
        for (const auto& round : assignment.rounds) {
          EXPECT_LE(std::ssize(round), assignment.longest_round);
          for (const std::int64_t m : round) ++times[m];
        }
      }
      EXPECT_EQ(std::ssize(times), micro_batches);
      for (const auto& [m, count] : times) {
        EXPECT_TRUE(m >= 0 && m < micro_batches && count == 1)
            << "micro-batch " << m << " of " << micro_batches << " on " << ranks << " ranks: " << count << " times";
      }
    }
  }
}

TEST_P(AssignmentOf, adds_in_the_order_of_one_rank_wherever_it_says_that_it_is_exact) {
  int exact = 0;
  for (std::int64_t micro_batches = 1; micro_batches <= kMostMicroBatches; ++micro_batches) {
    for (int ranks = 1; ranks <= kMostRanks && ranks <= micro_batches; ++ranks) {
      const Assignment assignment = assign_micro_batches(GetParam(), micro_batches, ranks, Rank(0));
      if (!assignment.inexact.empty()) continue;
      ++exact;
      EXPECT_EQ(emulate(GetParam(), micro_batches, ranks), reference(micro_batches)) << ranks << " ranks";
    }
  }
  // 1, 2, 4 and 8 ranks that divide the number of micro-batches.
  EXPECT_EQ(exact, 24 + 12 + 6 + 3);
}

TEST_P(AssignmentOf, says_why_it_is_not_exact) {
  EXPECT_EQ(assign_micro_batches(GetParam(), 16, 4, Rank(1)).inexact, "");
  EXPECT_THAT(assign_micro_batches(GetParam(), 16, 3, Rank(0)).inexact, HasSubstr("3 ranks"));
  EXPECT_THAT(assign_micro_batches(GetParam(), 6, 4, Rank(0)).inexact, HasSubstr("do not divide the 6"));
  EXPECT_THAT(assign_micro_batches(GetParam(), 12, 3, Rank(0)).inexact, HasSubstr("3 ranks"));
}

TEST_P(AssignmentOf, refuses_more_ranks_than_micro_batches) {
  try {
    assign_micro_batches(GetParam(), 3, 4, Rank(0));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_THAT(error.message, HasSubstr("4 ranks"));
    EXPECT_THAT(error.message, HasSubstr("3 micro-batches"));
    EXPECT_THAT(error.hint, HasSubstr("at most 3 ranks"));
  }
  EXPECT_THROW(assign_micro_batches(GetParam(), 0, 1, Rank(0)), Error);
  EXPECT_NO_THROW(assign_micro_batches(GetParam(), 4, 4, Rank(3)));
}

INSTANTIATE_TEST_SUITE_P(reductions, AssignmentOf, ::testing::Values(ReduceAt::kStep, ReduceAt::kUnit),
                         [](const auto& test) { return test.param == ReduceAt::kStep ? "at_step" : "by_unit"; });

// ddp's point: where micro-batches are a power of two, one reduction a step.
TEST(Assignment, at_the_step_reduces_once_where_it_can) {
  for (const std::int64_t micro_batches : {1, 2, 4, 8, 16}) {
    EXPECT_EQ(assign_micro_batches(ReduceAt::kStep, micro_batches, 1, Rank(0)).rounds.size(), 1U);
  }
  const Assignment third = assign_micro_batches(ReduceAt::kStep, 16, 4, Rank(2));
  EXPECT_EQ(third.rounds, (std::vector<std::vector<std::int64_t>>{{8, 9, 10, 11}}));
}

TEST(Assignment, by_unit_deals_micro_batches_out_in_turn) {
  const Assignment second = assign_micro_batches(ReduceAt::kUnit, 7, 3, Rank(1));
  EXPECT_EQ(second.rounds, (std::vector<std::vector<std::int64_t>>{{1}, {4}, {}}));
}

TEST(LeftLeaves, is_the_largest_power_of_two_below) {
  for (std::int64_t leaves = 2; leaves < 300; ++leaves) {
    const std::int64_t left = left_leaves(leaves);
    EXPECT_TRUE(std::has_single_bit(static_cast<std::uint64_t>(left)));
    EXPECT_LT(left, leaves);
    EXPECT_GE(2 * left, leaves);
  }
}

TEST(CounterLevels, grow_with_the_logarithm) {
  const std::map<std::int64_t, int> expected = {{1, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}, {1024, 10}};
  for (const auto& [items, levels] : expected) EXPECT_EQ(counter_levels(items), levels) << items;
}

}  // namespace
}  // namespace trireme::parallel
