// The binary counter over the turns of a round, on the shard that this rank holds of every unit: in
// memory, or on disk with one unit's counter in memory. Private to the room.
#pragma once

#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/tree_sum.hpp"

#include "parallel/fabric.hpp"
#include "parallel/unit_file.hpp"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace trireme::parallel {

class ShardSums {
 public:
  // On disk there is room for `turns` items a unit. Begin with restart().
  ShardSums(Fabric& fabric, const Layout& layout, std::int64_t turns, const DiskOptions& disk);

  // Starts over, for this many items a unit.
  void restart(std::int64_t turns);
  // Adds the next item of a unit.
  void add(std::size_t unit, std::span<const float> item);
  // The sum of a unit's items, also where they are fewer than was foreseen; valid until the next call for another unit.
  std::span<float> total(std::size_t unit);
  // Call after writing into total().
  void keep_total() { changed_ = true; }

  Bytes memory() const { return file_ ? Bytes(0) : size_of(levels_); }
  Bytes disk() const { return file_ ? file_->disk_bytes() : Bytes(0); }
  Bytes transient() const {
    return file_ ? Bytes(size_of(levels_).value + file_->memory().value) : Bytes(0);
  }
  memory::TierStats take_stats() { return file_ ? file_->take_stats() : memory::TierStats{}; }

 private:
  static Bytes size_of(const Buffer& buffer) {
    return Bytes(static_cast<std::int64_t>(buffer.bytes().size()));
  }
  std::int64_t size_of_unit(std::size_t unit) const;
  void bring_in(std::size_t unit);
  void put_back();
  std::span<std::byte> bytes_at_hand(std::size_t unit) const;

  Fabric& fabric_;
  const Layout& layout_;
  Rank me_;
  std::vector<std::int64_t> offset_;  // in memory: of each unit in a level
  std::int64_t level_size_ = 0;       // on disk: the largest shard
  int num_levels_ = 1;
  Buffer levels_;
  std::vector<TreeAccumulator> counters_;  // by unit
  std::vector<bool> begun_;                // units with an item
  std::unique_ptr<UnitFile> file_;
  std::optional<std::size_t> at_hand_;
  bool changed_ = false;  // what is at hand differs from what is on disk
};

}  // namespace trireme::parallel
