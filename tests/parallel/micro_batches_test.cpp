// The order of addition, followed with symbols: what a strategy adds is written down as an expression, and the expression
// must be that of a binary counter over the micro-batches, whoever computed them.
#include "trireme/parallel/micro_batches.hpp"

#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
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

// What the engine does: the ranks of a team in a turn, the turns of a round, the teams, then the rounds.
std::string emulate(std::int64_t micro_batches, int ranks, int team_size) {
  std::vector<Assignment> assignments;
  for (int r = 0; r < ranks; ++r) {
    assignments.push_back(assign_micro_batches(micro_batches, ranks, team_size, Rank(r)));
  }
  const auto at = [](int index) { return static_cast<std::size_t>(index); };
  std::vector<std::string> rounds;
  for (std::size_t round = 0; round < assignments[0].rounds.size(); ++round) {
    std::vector<std::string> teams;
    for (int first = 0; first < ranks; first += team_size) {
      std::vector<std::string> turns;
      for (std::size_t turn = 0; turn < assignments[at(first)].rounds.at(round).size(); ++turn) {
        std::vector<std::string> items;
        for (int r = first; r < first + team_size; ++r) {
          const std::int64_t m = assignments[at(r)].rounds.at(round).at(turn);
          items.push_back(m == kIdleTurn ? "0" : std::to_string(m));
        }
        turns.push_back(counter(items));
      }
      teams.push_back(turns.empty() ? "0" : counter(turns));
    }
    rounds.push_back(counter(teams));
  }
  return counter(rounds);
}

// Ranks in a team for a number of ranks: one, half of them, or all.
enum class Teams { kOfOne, kTwo, kOne };

int team_size(Teams teams, int ranks) {
  if (teams == Teams::kOfOne) return 1;
  return teams == Teams::kTwo && ranks % 2 == 0 ? ranks / 2 : ranks;
}

class AssignmentOf : public ::testing::TestWithParam<Teams> {
 protected:
  static Assignment assign(std::int64_t micro_batches, int ranks, int rank) {
    return assign_micro_batches(micro_batches, ranks, team_size(GetParam(), ranks), Rank(rank));
  }
};

TEST_P(AssignmentOf, gives_every_micro_batch_to_one_rank_once) {
  for (std::int64_t micro_batches = 1; micro_batches <= kMostMicroBatches; ++micro_batches) {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      std::map<std::int64_t, int> times;
      for (int r = 0; r < ranks; ++r) {
        const int team = team_size(GetParam(), ranks);
        const Assignment assignment = assign(micro_batches, ranks, r);
        const Assignment first = assign(micro_batches, ranks, r / team * team);
        EXPECT_EQ(assignment.rounds.size(), assign(micro_batches, ranks, 0).rounds.size()) << "ranks reduce together";
        EXPECT_EQ(assignment.inexact, first.inexact);
        EXPECT_EQ(assignment.num_turns(), first.num_turns()) << "a team takes its turns together";
        for (const auto& round : assignment.rounds) {
          for (const std::int64_t m : round) {
            if (m != kIdleTurn) ++times[m];
          }
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
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      if (!assign(micro_batches, ranks, 0).inexact.empty()) continue;
      ++exact;
      EXPECT_EQ(emulate(micro_batches, ranks, team_size(GetParam(), ranks)), reference(micro_batches))
          << ranks << " ranks";
    }
  }
  // 1, 2, 4 and 8 ranks that divide the number of micro-batches.
  EXPECT_EQ(exact, 24 + 12 + 6 + 3);
}

TEST_P(AssignmentOf, says_why_it_is_not_exact) {
  EXPECT_EQ(assign(16, 4, 1).inexact, "");
  EXPECT_THAT(assign(16, 3, 0).inexact, HasSubstr("3 ranks"));
  EXPECT_THAT(assign(6, 4, 0).inexact, HasSubstr("do not divide the 6"));
  EXPECT_THAT(assign(12, 3, 0).inexact, HasSubstr("3 ranks"));
}

std::string name_of(const ::testing::TestParamInfo<Teams>& test) {
  const std::array<const char*, 3> names{"of_one_rank", "two_of_half_the_ranks", "one_of_all"};
  return names.at(static_cast<std::size_t>(test.param));
}

INSTANTIATE_TEST_SUITE_P(teams, AssignmentOf, ::testing::Values(Teams::kOfOne, Teams::kTwo, Teams::kOne), name_of);

TEST(RequireWorkForAll, refuses_more_ranks_than_micro_batches) {
  try {
    require_work_for_all(3, 4);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_THAT(error.message, HasSubstr("4 ranks"));
    EXPECT_THAT(error.message, HasSubstr("3 micro-batches"));
    EXPECT_THAT(error.hint, HasSubstr("at most 3 ranks"));
  }
  EXPECT_NO_THROW(require_work_for_all(4, 4));
}

using Rounds = std::vector<std::vector<std::int64_t>>;

// ddp's point: where micro-batches are a power of two, one reduction a step.
TEST(Assignment, of_teams_of_one_reduces_once_where_it_can) {
  for (const std::int64_t micro_batches : {1, 2, 4, 8, 16}) {
    EXPECT_EQ(assign_micro_batches(micro_batches, 1, 1, Rank(0)).rounds.size(), 1U);
  }
  EXPECT_EQ(assign_micro_batches(16, 4, 1, Rank(2)).rounds, (Rounds{{8, 9, 10, 11}}));
  EXPECT_EQ(assign_micro_batches(12, 2, 1, Rank(1)).rounds, (Rounds{{2, 3}, {6, 7}, {10, 11}}));
}

TEST(Assignment, of_one_team_deals_micro_batches_out_in_turn) {
  EXPECT_EQ(assign_micro_batches(7, 3, 3, Rank(1)).rounds, (Rounds{{1, 4, kIdleTurn}}));
}

TEST(Assignment, of_several_teams_does_both) {
  EXPECT_EQ(assign_micro_batches(16, 4, 2, Rank(1)).rounds, (Rounds{{1, 3, 5, 7}}));
  EXPECT_EQ(assign_micro_batches(16, 4, 2, Rank(2)).rounds, (Rounds{{8, 10, 12, 14}}));
}

TEST(Dealt, turn_by_turn_whoever_adds_together) {
  const Assignment apart = deal_micro_batches(3, 4, 1, Rank(2));
  EXPECT_EQ(apart.rounds, (std::vector<std::vector<std::int64_t>>{{2}, {6}, {10}}));
  const Assignment together = deal_micro_batches(3, 4, 4, Rank(2));
  EXPECT_EQ(together.rounds, (std::vector<std::vector<std::int64_t>>{{2, 6, 10}}));
  EXPECT_EQ(apart.inexact, "");
  EXPECT_NE(deal_micro_batches(3, 3, 1, Rank(0)).inexact, "");
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
