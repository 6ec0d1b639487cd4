#include "trireme/parallel/norms.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/norm.hpp"

#include <algorithm>
#include <utility>

namespace trireme::parallel {

namespace {

static_assert(kBlock == kernels::kNormBlock, "shards end on the borders of norm blocks");

// The ranks of a unit's shards, in the order in which the shards lie.
std::vector<std::size_t> by_position(const Layout& layout, std::size_t unit) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (int r = 0; r < layout.num_ranks(); ++r) {
    order.emplace_back(layout.shard(unit, Rank(r)).begin, static_cast<std::size_t>(r));
  }
  std::sort(order.begin(), order.end());
  std::vector<std::size_t> ranks;
  for (const auto& [begin, rank] : order) ranks.push_back(rank);
  return ranks;
}

}  // namespace

Norms::Norms(const Layout& layout, int num_groups, const NormGroupOf& group_of)
    : layout_(layout), num_groups_(num_groups) {
  ensure(num_groups == 1 || group_of != nullptr, "who is in which norm group?");
  for (const Unit& unit : layout.units()) {
    auto& groups = groups_.emplace_back();
    for (const Slot& slot : unit.slots) {
      groups.push_back(num_groups == 1 ? 0 : group_of(slot));
      ensure(groups.back() >= 0 && groups.back() < num_groups, "a norm group that does not exist");
    }
  }
}

void Norms::append(std::size_t unit, Range shard, std::span<const float> gradient,
                   std::vector<double>& sums) const {
  const auto sum_into = [&](Range part) {
    const std::size_t at = sums.size();
    sums.resize(at + static_cast<std::size_t>((part.size() + kBlock - 1) / kBlock));
    kernels::block_square_sums(gradient.subspan(static_cast<std::size_t>(part.begin - shard.begin),
                                                static_cast<std::size_t>(part.size())),
                               std::span(sums).subspan(at));
  };
  if (num_groups_ == 1) return sum_into(shard);
  for (std::int64_t block = shard.begin; block < shard.end; block += kBlock) {
    for (const Piece& piece : layout_.pieces(unit, {block, block + kBlock})) {
      sum_into({piece.offset, piece.offset + piece.count});
    }
  }
}

std::vector<double> Norms::total(const std::vector<std::vector<double>>& by_rank) const {
  std::vector<std::size_t> next(by_rank.size(), 0);
  std::vector<double> totals(static_cast<std::size_t>(num_groups_), 0.0);
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    for (const std::size_t r : by_position(layout_, u)) {
      const Range shard = layout_.shard(u, Rank(static_cast<std::int64_t>(r)));
      for (std::int64_t block = shard.begin; block < shard.end; block += kBlock) {
        if (num_groups_ == 1) {
          totals[0] += by_rank[r][next[r]++];
          continue;
        }
        for (const Piece& piece : layout_.pieces(u, {block, block + kBlock})) {
          totals[static_cast<std::size_t>(group(u, piece.slot))] += by_rank[r][next[r]++];
        }
      }
    }
  }
  return totals;
}

}  // namespace trireme::parallel
