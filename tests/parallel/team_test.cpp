// Who stands in for whom, for every way in which up to eight ranks lie on up to four nodes.
#include "trireme/parallel/team.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace trireme::parallel {
namespace {

// All ways to put `ranks` on nodes, at least one on each.
std::vector<std::vector<int>> sizes_of_nodes(int ranks, int most_nodes) {
  if (ranks == 0) return {{}};
  std::vector<std::vector<int>> result;
  if (most_nodes == 0) return result;
  for (int first = 1; first <= ranks; ++first) {
    for (std::vector<int> rest : sizes_of_nodes(ranks - first, most_nodes - 1)) {
      rest.insert(rest.begin(), first);
      result.push_back(rest);
    }
  }
  return result;
}

comm::Topology topology_of(const std::vector<int>& sizes, int rank) {
  comm::Topology topology;
  topology.num_nodes = static_cast<int>(sizes.size());
  topology.first_rank = {0};
  for (const int size : sizes) topology.first_rank.push_back(topology.first_rank.back() + size);
  topology.node = topology.node_of(rank);
  return topology;
}

std::string text_of(const std::vector<int>& sizes) {
  std::string text;
  for (const int size : sizes) text += std::to_string(size) + " ";
  return text;
}

struct Case {
  std::vector<int> sizes;
  int first, size;
  std::vector<Team> teams;  // as each member sees it
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const auto& sizes : sizes_of_nodes(ranks, 4)) {
      for (int size = 1; size <= ranks; ++size) {
        if (ranks % size != 0) continue;
        for (int first = 0; first < ranks; first += size) {
          Case& one = cases.emplace_back(Case{sizes, first, size, {}});
          for (int rank = first; rank < first + size; ++rank)
            one.teams.emplace_back(topology_of(sizes, rank), Rank(first), size, Rank(rank));
        }
      }
    }
  }
  return cases;
}

TEST(Team, members_tile_the_ranks_once) {
  for (const Case& one : all_cases()) {
    for (const Team& team : one.teams) {
      std::vector<int> seen;
      for (int node = 0; node < team.num_nodes(); ++node) {
        for (const Rank rank : team.members(node)) seen.push_back(static_cast<int>(rank.value));
      }
      std::vector<int> all;
      for (int rank = one.first; rank < one.first + one.size; ++rank) all.push_back(rank);
      EXPECT_EQ(seen, all) << text_of(one.sizes);
    }
  }
}

TEST(Team, each_rank_has_one_stand_in_on_every_other_node_and_all_agree_who) {
  for (const Case& one : all_cases()) {
    const auto seen_by = [&one](Rank rank) -> const Team& {
      return one.teams[static_cast<std::size_t>(rank.value - one.first)];
    };
    for (int r = one.first; r < one.first + one.size; ++r) {
      const Rank owner(r);
      const Team& mine = seen_by(owner);
      std::size_t other = 0;
      for (int node = 0; node < mine.num_nodes(); ++node) {
        const Rank stand_in = mine.stand_in(node, owner);
        for (const Team& team : one.teams) EXPECT_EQ(team.stand_in(node, owner), stand_in) << text_of(one.sizes);
        const auto& members = mine.members(node);
        EXPECT_NE(std::find(members.begin(), members.end(), stand_in), members.end()) << text_of(one.sizes);
        if (node == mine.my_node()) {
          EXPECT_EQ(stand_in, owner);
          continue;
        }
        EXPECT_EQ(mine.my_stand_ins()[other++], stand_in);
        const auto& served = seen_by(stand_in).remote_owners();
        EXPECT_EQ(std::count(served.begin(), served.end(), owner), 1) << text_of(one.sizes);
      }
      EXPECT_EQ(mine.my_stand_ins().size(), other);
    }
    std::size_t crossings = 0;
    for (const Team& team : one.teams) crossings += team.remote_owners().size();
    EXPECT_EQ(crossings, static_cast<std::size_t>(one.size * (one.teams[0].num_nodes() - 1))) << "each crosses once";
  }
}

TEST(Team, a_node_serves_the_others_with_all_its_ranks) {
  for (const Case& one : all_cases()) {
    for (int node = 0; node < one.teams[0].num_nodes(); ++node) {
      std::size_t most = 0, fewest = 100, all = 0;
      for (const Rank rank : one.teams[0].members(node)) {
        const std::size_t served = one.teams[static_cast<std::size_t>(rank.value - one.first)].remote_owners().size();
        most = std::max(most, served);
        fewest = std::min(fewest, served);
        all += served;
      }
      const auto others = static_cast<std::size_t>(one.size) - one.teams[0].members(node).size();
      EXPECT_EQ(all, others);
      // Of each other node the members are dealt by place, so a rank has at most one more for each.
      EXPECT_LE(most - fewest, static_cast<std::size_t>(one.teams[0].num_nodes())) << text_of(one.sizes);
    }
  }
}

TEST(Team, sums_are_exact_where_nodes_are_subtrees) {
  const auto inexact = [](const std::vector<int>& sizes, int ranks) {
    return Team(topology_of(sizes, 0), Rank(0), ranks, Rank(0)).inexact();
  };
  EXPECT_EQ(inexact({4}, 4), "");
  EXPECT_EQ(inexact({2, 2}, 4), "");
  EXPECT_EQ(inexact({2, 2, 2, 2}, 8), "");
  EXPECT_EQ(inexact({1, 1, 1, 1}, 4), "");
  EXPECT_EQ(inexact({3}, 3), "");
  EXPECT_NE(inexact({3, 1}, 4), "");
  EXPECT_NE(inexact({3, 3}, 6), "");
  EXPECT_NE(inexact({1, 2, 1}, 4), "");
}

}  // namespace
}  // namespace trireme::parallel
