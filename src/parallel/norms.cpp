#include "trireme/parallel/norms.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/norm.hpp"

#include <cstdint>

namespace trireme::parallel {

namespace {

static_assert(kBlock == kernels::kNormBlock, "parts end on the borders of norm blocks");

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

void Norms::append(std::size_t unit, Range owned, std::span<const float> gradient,
                   std::vector<double>& sums) const {
  const auto sum_into = [&](Range part) {
    const std::size_t at = sums.size();
    sums.resize(at + static_cast<std::size_t>((part.size() + kBlock - 1) / kBlock));
    kernels::block_square_sums(gradient.subspan(static_cast<std::size_t>(part.begin - owned.begin),
                                                static_cast<std::size_t>(part.size())),
                               std::span(sums).subspan(at));
  };
  if (num_groups_ == 1) return sum_into(owned);
  for (std::int64_t block = owned.begin; block < owned.end; block += kBlock) {
    for (const Piece& piece : layout_.pieces(unit, {block, block + kBlock})) {
      sum_into({piece.offset, piece.offset + piece.count});
    }
  }
}

std::vector<double> Norms::total(const std::vector<std::vector<double>>& by_rank) const {
  std::vector<std::size_t> next(by_rank.size(), 0);
  std::vector<double> totals(static_cast<std::size_t>(num_groups_), 0.0);
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (!layout_.unit(u).trains) continue;
    for (int position = 0; position < layout_.num_ranks(); ++position) {
      const auto r = static_cast<std::size_t>(layout_.owner(u, position).value);
      const Range part = layout_.part(u, position);
      for (std::int64_t block = part.begin; block < part.end; block += kBlock) {
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
