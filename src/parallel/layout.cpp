#include "trireme/parallel/layout.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace trireme::parallel {

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Layout::Layout(std::vector<Unit> units, int num_ranks)
    : units_(std::move(units)), num_ranks_(num_ranks) {
  ensure(num_ranks > 0, "a layout has at least one rank");
  for (Unit& unit : units_) {
    std::int64_t end = 0;
    for (Slot& slot : unit.slots) {
      slot.size = std::accumulate(slot.shape.begin(), slot.shape.end(), std::int64_t{1},
                                  std::multiplies<>());
      slot.offset = round_up(end, kParameterAlignment);
      end = slot.offset + slot.size;
      num_parameters_ += slot.size;
    }
    unit.size = round_up(end, kBlock);
    unit.first_block = num_blocks_;
    num_blocks_ += unit.size / kBlock;
  }
}

std::int64_t Layout::largest_unit() const {
  std::int64_t largest = 0;
  for (const Unit& unit : units_) largest = std::max(largest, unit.size);
  return largest;
}

Range Layout::shard(std::size_t unit, Rank rank) const {
  const std::int64_t blocks = units_[unit].size / kBlock;
  const std::int64_t ranks = num_ranks_;
  const std::int64_t turn = (rank.value + static_cast<std::int64_t>(unit)) % ranks;
  return {blocks * turn / ranks * kBlock, blocks * (turn + 1) / ranks * kBlock};
}

std::int64_t Layout::shard_elements(Rank rank) const {
  std::int64_t total = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) total += shard(u, rank).size();
  return total;
}

std::vector<Piece> Layout::pieces(std::size_t unit, Range range) const {
  std::vector<Piece> result;
  const std::vector<Slot>& slots = units_[unit].slots;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const std::int64_t begin = std::max(range.begin, slots[s].offset);
    const std::int64_t end = std::min(range.end, slots[s].offset + slots[s].size);
    if (begin < end) result.push_back({s, begin - slots[s].offset, end - begin, begin});
  }
  return result;
}

const Strategy& strategy(const std::string& name) {
  static const std::array<Strategy, 2> kTable{{
      {"ddp", Placement::kReplicated, Placement::kReplicated, Placement::kReplicated,
       ReduceAt::kStep},
      {"zero3", Placement::kFlatShard, Placement::kFlatShard, Placement::kFlatShard,
       ReduceAt::kUnit},
  }};
  for (const Strategy& row : kTable) {
    if (row.name == name) return row;
  }
  throw Error(ErrorKind::kConfig, fmt::format("parallel.strategy: '{}' is not available", name),
              "this version has ddp and zero3");
}

}  // namespace trireme::parallel
