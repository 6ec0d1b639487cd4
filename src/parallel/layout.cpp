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

Layout::Layout(std::vector<Unit> units, Mesh mesh) : units_(std::move(units)), mesh_(mesh) {
  ensure(mesh.num_ranks > 0 && mesh.shard_size > 0 && mesh.num_ranks % mesh.shard_size == 0,
         "a mesh is a full grid of ranks");
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

Range Layout::part(std::size_t unit, int position) const {
  const std::int64_t blocks = units_[unit].size / kBlock;
  const std::int64_t ranks = mesh_.num_ranks;
  return {blocks * position / ranks * kBlock, blocks * (position + 1) / ranks * kBlock};
}

// Places turn by one with each unit; the groups inside a place by one when the places are round.
int Layout::turned_place(std::size_t unit, int place, int direction) const {
  const auto size = static_cast<std::int64_t>(mesh_.shard_size);
  const std::int64_t turn = static_cast<std::int64_t>(unit) % size;
  return static_cast<int>((place + direction * turn + size) % size);
}

int Layout::turned_group(std::size_t unit, int group, int direction) const {
  const auto groups = static_cast<std::int64_t>(mesh_.num_groups());
  const std::int64_t turn = static_cast<std::int64_t>(unit) / mesh_.shard_size % groups;
  return static_cast<int>((group + direction * turn + groups) % groups);
}

int Layout::first_position(std::size_t unit, Rank rank) const {
  return turned_place(unit, mesh_.place_of(rank), 1) * mesh_.num_groups();
}

int Layout::position(std::size_t unit, Rank owner) const {
  return first_position(unit, owner) + turned_group(unit, mesh_.group_of(owner), 1);
}

Rank Layout::owner(std::size_t unit, int position) const {
  const int groups = mesh_.num_groups();
  return mesh_.rank_at(turned_group(unit, position % groups, -1),
                       turned_place(unit, position / groups, -1));
}

Range Layout::shard(std::size_t unit, Rank rank) const {
  const int first = first_position(unit, rank);
  return {part(unit, first).begin, part(unit, first + mesh_.num_groups() - 1).end};
}

std::int64_t Layout::owned_elements(Rank rank) const {
  std::int64_t total = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) total += owned(u, rank).size();
  return total;
}

std::int64_t Layout::shard_elements(Rank rank) const {
  std::int64_t total = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) total += shard(u, rank).size();
  return total;
}

std::int64_t Layout::largest_shard(Rank rank) const {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < units_.size(); ++u)
    largest = std::max(largest, shard(u, rank).size());
  return largest;
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
  constexpr auto kWhole = Placement::kReplicated;
  constexpr auto kShard = Placement::kFlatShard;
  static const std::array<Strategy, 5> kTable{{
      {"ddp", kWhole, kWhole, kWhole, ReduceAt::kStep},
      {"zero1", kWhole, kWhole, kShard, ReduceAt::kStep},
      {"zero2", kWhole, kShard, kShard, ReduceAt::kUnit},
      {"zero3", kShard, kShard, kShard, ReduceAt::kUnit},
      {"hsdp", kShard, kShard, kShard, ReduceAt::kUnit},
  }};
  for (const Strategy& row : kTable) {
    if (row.name == name) return row;
  }
  throw Error(ErrorKind::kConfig, fmt::format("parallel.strategy: '{}' is unknown", name),
              "it is ddp, zero1, zero2, zero3 or hsdp");
}

Mesh make_mesh(const Strategy& strategy, int num_ranks, int shard_size, int ranks_per_node) {
  if (strategy.name != "hsdp") {
    if (shard_size != 0 && strategy.name != "ddp" && shard_size != num_ranks) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("parallel.shard_size is {}, but {} shards over all {} ranks",
                              shard_size, strategy.name, num_ranks),
                  "leave it out, or use strategy hsdp");
    }
    if (shard_size > 1 && strategy.name == "ddp") {
      throw Error(ErrorKind::kConfig, "parallel.shard_size has no meaning for ddp",
                  "leave it out, or use strategy hsdp");
    }
    return {num_ranks, strategy.state == Placement::kReplicated ? 1 : num_ranks};
  }
  if (shard_size == 0 && ranks_per_node == 0) {
    throw Error(ErrorKind::kConfig,
                "parallel.shard_size must be given: nodes have different numbers of ranks",
                "set it to a number that divides the ranks");
  }
  const int size = shard_size == 0 ? ranks_per_node : shard_size;
  if (num_ranks % size != 0) {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("{} ranks are not a multiple of parallel.shard_size {}", num_ranks, size),
        "start a multiple of it, or set a size that divides the ranks");
  }
  return {num_ranks, size};
}

}  // namespace trireme::parallel
