// The binary counter over the turns of a round, on the shard that this rank holds of every unit.
// Private to the room.
#pragma once

#include "trireme/memory/host_buffer.hpp"
#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/tree_sum.hpp"

#include <filesystem>
#include <span>
#include <vector>

namespace trireme::parallel {

class ShardSums {
 public:
  // `nvme`: a folder to keep the sums in, or empty for memory.
  ShardSums(const Layout& layout, Rank me, const std::filesystem::path& nvme);

  // Starts over, for this many items a unit. Allocates when that needs more room than before.
  void restart(std::int64_t turns);
  // Adds the next item of a unit.
  void add(std::size_t unit, std::span<const float> item);
  // The sum of a unit's items; valid until the next call for another unit.
  std::span<float> total(std::size_t unit);
  // Call after writing into total().
  void keep_total(std::size_t unit);

  Bytes memory() const { return Bytes(static_cast<std::int64_t>(levels_.bytes().size())); }
  Bytes disk() const { return Bytes(0); }

 private:
  std::int64_t size_of(std::size_t unit) const;

  const Layout& layout_;
  Rank me_;
  std::vector<std::int64_t> offset_;  // of each unit in a level
  std::int64_t level_size_ = 0;
  memory::HostBuffer levels_;
  std::vector<TreeAccumulator> counters_;  // by unit
};

}  // namespace trireme::parallel
