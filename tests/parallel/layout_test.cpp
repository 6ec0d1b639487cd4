#include "trireme/parallel/layout.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace trireme::parallel {
namespace {

using ::testing::HasSubstr;

// Units from a handful of elements to some hundred blocks, with empty, scalar and one-element parameters among them.
std::vector<Unit> random_units(std::uint64_t seed) {
  std::uint64_t draw = 0;
  const auto below = [&](std::uint32_t bound) {
    return static_cast<std::int64_t>(philox(seed, draw++)[0] % bound);
  };
  std::vector<Unit> units(static_cast<std::size_t>(1 + below(9)));
  for (std::size_t u = 0; u < units.size(); ++u) {
    units[u].name = "unit" + std::to_string(u);
    const std::int64_t slots = 1 + below(6);
    for (std::int64_t s = 0; s < slots; ++s) {
      std::vector<std::int64_t> shape;
      switch (below(5)) {
        case 0: break;  // a scalar
        case 1: shape = {below(3)}; break;
        case 2: shape = {below(900), 1 + below(900)}; break;
        case 3: shape = {1 + below(3), 1 + below(5), 1 + below(7)}; break;
        default: shape = {kBlock * below(3) + below(2)};
      }
      units[u].slots.push_back({units[u].name + "." + std::to_string(s), shape, 0, 0});
    }
  }
  return units;
}

constexpr std::uint64_t kSeeds = 40;
constexpr int kMostRanks = 8;

void for_random_layouts(const std::function<void(const Layout&)>& expect) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks");
      expect(Layout(random_units(seed), ranks));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Layout, shards_tile_every_unit_once) {
  for_random_layouts([](const Layout& layout) {
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      std::vector<Range> shards;
      for (int r = 0; r < layout.num_ranks(); ++r) shards.push_back(layout.shard(u, Rank(r)));
      std::sort(shards.begin(), shards.end(),
                [](Range a, Range b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
      std::int64_t end = 0;
      for (const Range& shard : shards) {
        ASSERT_EQ(shard.begin, end);
        ASSERT_GE(shard.end, shard.begin);
        end = shard.end;
      }
      ASSERT_EQ(end, layout.unit(u).size);
    }
  });
}

TEST(Layout, units_and_shards_end_on_block_borders) {
  for_random_layouts([](const Layout& layout) {
    std::int64_t blocks = 0;
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      ASSERT_EQ(layout.unit(u).size % kBlock, 0);
      ASSERT_EQ(layout.unit(u).first_block, blocks);
      blocks += layout.unit(u).size / kBlock;
      for (int r = 0; r < layout.num_ranks(); ++r) {
        ASSERT_EQ(layout.shard(u, Rank(r)).begin % kBlock, 0);
        ASSERT_EQ(layout.shard(u, Rank(r)).end % kBlock, 0);
      }
    }
    ASSERT_EQ(layout.num_blocks(), blocks);
    ASSERT_EQ(layout.num_elements(), blocks * kBlock);
  });
}

TEST(Layout, ranks_hold_equally_much_within_a_block_a_unit) {
  for_random_layouts([](const Layout& layout) {
    std::int64_t total = 0;
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const double even = static_cast<double>(layout.unit(u).size) / layout.num_ranks();
      for (int r = 0; r < layout.num_ranks(); ++r) {
        const auto size = layout.shard(u, Rank(r)).size();
        ASSERT_LT(static_cast<double>(size), even + kBlock);
        ASSERT_GT(static_cast<double>(size), even - kBlock);
      }
    }
    for (int r = 0; r < layout.num_ranks(); ++r) total += layout.shard_elements(Rank(r));
    ASSERT_EQ(total, layout.num_elements());
  });
}

// Otherwise the same rank would get the larger part of each of a model's equal blocks.
TEST(Layout, equal_units_give_every_rank_the_same_in_turn) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    std::vector<Unit> units(static_cast<std::size_t>(3 * ranks));
    for (Unit& unit : units) unit.slots.push_back({"w", {kBlock * 5 + 1}, 0, 0});  // 6 blocks
    const Layout layout(units, ranks);
    for (int r = 0; r < ranks; ++r) EXPECT_EQ(layout.shard_elements(Rank(r)), 18 * kBlock);
  }
}

TEST(Layout, parameters_are_aligned_and_do_not_overlap) {
  for_random_layouts([](const Layout& layout) {
    std::int64_t parameters = 0;
    for (const Unit& unit : layout.units()) {
      std::int64_t end = 0;
      for (const Slot& slot : unit.slots) {
        ASSERT_EQ(slot.size, std::accumulate(slot.shape.begin(), slot.shape.end(), std::int64_t{1},
                                             std::multiplies<>()));
        ASSERT_EQ(slot.offset % kParameterAlignment, 0);
        ASSERT_GE(slot.offset, end);
        end = slot.offset + slot.size;
        parameters += slot.size;
      }
      ASSERT_LE(end, unit.size);
      ASSERT_LT(unit.size - end, kBlock) << "no more padding than needed";
    }
    ASSERT_EQ(layout.num_parameters(), parameters);
  });
}

TEST(Layout, pieces_of_all_shards_cover_every_parameter_element_once) {
  for_random_layouts([](const Layout& layout) {
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const std::vector<Slot>& slots = layout.unit(u).slots;
      std::vector<std::vector<int>> covered;
      for (const Slot& slot : slots) covered.emplace_back(static_cast<std::size_t>(slot.size), 0);
      for (int r = 0; r < layout.num_ranks(); ++r) {
        const Range shard = layout.shard(u, Rank(r));
        for (const Piece& piece : layout.pieces(u, shard)) {
          ASSERT_GT(piece.count, 0);
          ASSERT_EQ(piece.offset, slots[piece.slot].offset + piece.begin);
          ASSERT_GE(piece.offset, shard.begin);
          ASSERT_LE(piece.offset + piece.count, shard.end);
          for (std::int64_t i = 0; i < piece.count; ++i) {
            ++covered[piece.slot].at(static_cast<std::size_t>(piece.begin + i));
          }
        }
      }
      for (const auto& counts : covered) {
        ASSERT_TRUE(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; }));
      }
    }
  });
}

TEST(Layout, pieces_of_padding_are_none) {
  std::vector<Unit> units(1);
  units[0].slots = {{"a", {10}, 0, 0}, {"b", {10}, 0, 0}};
  const Layout layout(units, 1);
  EXPECT_TRUE(layout.pieces(0, {10, 32}).empty());
  EXPECT_TRUE(layout.pieces(0, {42, kBlock}).empty());
  ASSERT_EQ(layout.pieces(0, {9, 33}).size(), 2U);
  EXPECT_EQ(layout.pieces(0, {9, 33})[1].count, 1);
}

TEST(Layout, does_not_depend_on_ranks_except_for_shards) {
  const Layout one(random_units(3), 1);
  const Layout seven(random_units(3), 7);
  ASSERT_EQ(one.num_blocks(), seven.num_blocks());
  EXPECT_EQ(one.largest_unit(), seven.largest_unit());
  for (std::size_t u = 0; u < one.units().size(); ++u) {
    for (std::size_t s = 0; s < one.unit(u).slots.size(); ++s) {
      EXPECT_EQ(one.unit(u).slots[s].offset, seven.unit(u).slots[s].offset);
    }
  }
}

// DESIGN.md section 2.
TEST(Strategy, rows_are_those_of_the_design) {
  const Strategy& ddp = strategy("ddp");
  EXPECT_EQ(ddp.work, Placement::kReplicated);
  EXPECT_EQ(ddp.grad, Placement::kReplicated);
  EXPECT_EQ(ddp.state, Placement::kReplicated);
  EXPECT_EQ(ddp.reduce_at, ReduceAt::kStep);
  const Strategy& zero3 = strategy("zero3");
  EXPECT_EQ(zero3.work, Placement::kFlatShard);
  EXPECT_EQ(zero3.grad, Placement::kFlatShard);
  EXPECT_EQ(zero3.state, Placement::kFlatShard);
  EXPECT_EQ(zero3.reduce_at, ReduceAt::kUnit);
}

TEST(Strategy, unknown_is_refused) {
  for (const char* name : {"", "zero2", "DDP", "zero33"}) {
    try {
      strategy(name);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kConfig);
      EXPECT_THAT(error.message, HasSubstr("'" + std::string(name) + "'"));
      EXPECT_THAT(error.hint, HasSubstr("zero3"));
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
