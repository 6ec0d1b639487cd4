#include "trireme/parallel/layout.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include "support/error_of.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace trireme::parallel {
namespace {

using ::testing::HasSubstr;
using trireme::testing::error_of;

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
      for (int size = 1; size <= ranks; ++size) {
        if (ranks % size != 0) continue;
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks in groups of " +
                     std::to_string(size));
        expect(Layout(random_units(seed), {ranks, size}));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

void expect_tiles(std::vector<Range> ranges, std::int64_t size) {
  std::sort(ranges.begin(), ranges.end(),
            [](Range a, Range b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    ASSERT_EQ(range.begin, end);
    ASSERT_GE(range.end, range.begin);
    end = range.end;
  }
  ASSERT_EQ(end, size);
}

TEST(Layout, owned_parts_tile_every_unit_once) {
  for_random_layouts([](const Layout& layout) {
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      std::vector<Range> owned;
      for (int r = 0; r < layout.num_ranks(); ++r) {
        owned.push_back(layout.owned(u, Rank(r)));
        ASSERT_EQ(layout.owner(u, layout.position(u, Rank(r))), Rank(r));
      }
      expect_tiles(owned, layout.unit(u).size);
    }
  });
}

TEST(Layout, shards_of_a_group_tile_every_unit_and_are_those_of_other_groups) {
  for_random_layouts([](const Layout& layout) {
    const Mesh& mesh = layout.mesh();
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      std::vector<Range> shards;
      for (int place = 0; place < mesh.shard_size; ++place) {
        shards.push_back(layout.shard(u, mesh.rank_at(0, place)));
        std::vector<Range> parts;
        for (int group = 0; group < mesh.num_groups(); ++group) {
          const Rank rank = mesh.rank_at(group, place);
          ASSERT_EQ(layout.shard(u, rank), shards.back());
          parts.push_back(layout.owned(u, rank));
          parts.back().begin -= shards.back().begin;
          parts.back().end -= shards.back().begin;
          const int first = layout.first_position(u, rank);
          ASSERT_GE(layout.position(u, rank), first);
          ASSERT_LT(layout.position(u, rank), first + mesh.num_groups());
        }
        expect_tiles(parts, shards.back().size());
      }
      expect_tiles(shards, layout.unit(u).size);
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
        ASSERT_EQ(layout.owned(u, Rank(r)).begin % kBlock, 0);
        ASSERT_EQ(layout.owned(u, Rank(r)).end % kBlock, 0);
      }
    }
    ASSERT_EQ(layout.num_blocks(), blocks);
    ASSERT_EQ(layout.num_elements(), blocks * kBlock);
  });
}

TEST(Layout, ranks_own_equally_much_within_a_block_a_unit) {
  for_random_layouts([](const Layout& layout) {
    std::int64_t total = 0;
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const double even = static_cast<double>(layout.unit(u).size) / layout.num_ranks();
      for (int r = 0; r < layout.num_ranks(); ++r) {
        const auto size = layout.owned(u, Rank(r)).size();
        ASSERT_LT(static_cast<double>(size), even + kBlock);
        ASSERT_GT(static_cast<double>(size), even - kBlock);
      }
    }
    for (int r = 0; r < layout.num_ranks(); ++r) total += layout.owned_elements(Rank(r));
    ASSERT_EQ(total, layout.num_elements());
  });
}

// Otherwise the same rank would get the larger part of each of a model's equal blocks.
TEST(Layout, equal_units_give_every_rank_the_same_in_turn) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    std::vector<Unit> units(static_cast<std::size_t>(3 * ranks));
    for (Unit& unit : units) unit.slots.push_back({"w", {kBlock * 5 + 1}, 0, 0});  // 6 blocks
    for (const int size : {1, ranks}) {
      const Layout layout(units, {ranks, size});
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(layout.owned_elements(Rank(r)), 18 * kBlock);
    }
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

TEST(Layout, pieces_of_all_owned_parts_cover_every_parameter_element_once) {
  for_random_layouts([](const Layout& layout) {
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const std::vector<Slot>& slots = layout.unit(u).slots;
      std::vector<std::vector<int>> covered;
      for (const Slot& slot : slots) covered.emplace_back(static_cast<std::size_t>(slot.size), 0);
      for (int r = 0; r < layout.num_ranks(); ++r) {
        const Range shard = layout.owned(u, Rank(r));
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
  const Layout layout(units, {1, 1});
  EXPECT_TRUE(layout.pieces(0, {10, 32}).empty());
  EXPECT_TRUE(layout.pieces(0, {42, kBlock}).empty());
  ASSERT_EQ(layout.pieces(0, {9, 33}).size(), 2U);
  EXPECT_EQ(layout.pieces(0, {9, 33})[1].count, 1);
}

TEST(Layout, does_not_depend_on_ranks_except_for_shards) {
  const Layout one(random_units(3), {1, 1});
  const Layout seven(random_units(3), {7, 7});
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
  struct Row {
    std::string name;
    bool whole_work, whole_grad, whole_state;
    ReduceAt reduce_at;
  };
  for (const Row& row : {Row{"ddp", true, true, true, ReduceAt::kStep}, Row{"zero1", true, true, false, ReduceAt::kStep},
                         Row{"zero2", true, false, false, ReduceAt::kUnit},
                         Row{"zero3", false, false, false, ReduceAt::kUnit},
                         Row{"hsdp", false, false, false, ReduceAt::kUnit}}) {
    const Strategy& found = strategy(row.name);
    EXPECT_EQ(found.work == Placement::kReplicated, row.whole_work) << row.name;
    EXPECT_EQ(found.grad == Placement::kReplicated, row.whole_grad) << row.name;
    EXPECT_EQ(found.state == Placement::kReplicated, row.whole_state) << row.name;
    EXPECT_EQ(found.reduce_at, row.reduce_at) << row.name;
  }
}

TEST(Strategy, unknown_is_refused) {
  for (const char* name : {"", "ZERO3", "fsdp", "zero4"}) {
    const Error error = error_of([&] { strategy(name); });
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_THAT(error.hint, HasSubstr("hsdp"));
  }
}

TEST(MakeMesh, shards_over_all_ranks_over_none_or_over_groups) {
  const auto size = [](const char* name, int shard_size, int ranks_per_node) {
    return make_mesh(strategy(name), 8, shard_size, ranks_per_node).shard_size;
  };
  EXPECT_EQ(size("ddp", 0, 4), 1);
  for (const char* name : {"zero1", "zero2", "zero3"}) {
    EXPECT_EQ(size(name, 0, 4), 8) << name;
    EXPECT_EQ(size(name, 8, 4), 8) << name;
  }
  EXPECT_EQ(size("hsdp", 0, 4), 4) << "a node";
  EXPECT_EQ(size("hsdp", 2, 4), 2);
}

TEST(MakeMesh, refuses_sizes_that_mean_nothing) {
  const auto message = [](const char* name, int shard_size, int ranks_per_node) {
    const Error error = error_of([&] { make_mesh(strategy(name), 8, shard_size, ranks_per_node); });
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_FALSE(error.hint.empty());
    return error.message;
  };
  EXPECT_THAT(message("hsdp", 3, 4), HasSubstr("8 ranks are not a multiple of parallel.shard_size 3"));
  EXPECT_THAT(message("hsdp", 0, 0), HasSubstr("nodes have different numbers of ranks"));
  EXPECT_THAT(message("zero3", 4, 4), HasSubstr("zero3 shards over all 8 ranks"));
  EXPECT_THAT(message("ddp", 4, 4), HasSubstr("no meaning for ddp"));
}

}  // namespace
}  // namespace trireme::parallel
