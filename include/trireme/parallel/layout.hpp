// Where every parameter lives: ranks form a mesh, parameters form units, a unit is one flat padded
// range, and the range is cut into parts on block borders. Pure arithmetic: no MPI, no torch.
//
// Placements are said per mesh axis, so that later axes (tensor, pipeline, expert) extend the table
// instead of replacing it. Checkpoints see only pieces of logical tensors, never shards.
#pragma once

#include "trireme/base/units.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::parallel {

// A unit's size, and every shard border, is a multiple of this many elements: the norm is summed
// over such blocks.
inline constexpr std::int64_t kBlock = 8192;
// Parameters start at multiples of this many elements: 64 bytes in bf16.
inline constexpr std::int64_t kParameterAlignment = 32;

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// The ranks as a grid: `shard_size` consecutive ranks hold one copy of the sharded state together,
// and such groups are replicas of each other. Rank r is place r % shard_size of group r /
// shard_size.
struct Mesh {
  int num_ranks = 1;
  int shard_size = 1;

  int num_groups() const { return num_ranks / shard_size; }
  int group_of(Rank rank) const { return static_cast<int>(rank.value) / shard_size; }
  int place_of(Rank rank) const { return static_cast<int>(rank.value) % shard_size; }
  Rank rank_at(int group, int place) const { return Rank(group * shard_size + place); }
};

// A parameter inside a unit, in elements.
struct Slot {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t size = 0;
  std::int64_t offset = 0;  // from the unit's start
  bool trains = true;       // as its unit
};

struct Unit {
  std::string name;
  std::vector<Slot> slots;
  bool trains = true;            // false: all of it is frozen: no gradients, no moments
  bool keeps_fp32 = false;       // its weights stay fp32, whatever the others compute with
  bool permanent = false;        // whole on every rank all the time, whatever the strategy
  std::int64_t size = 0;         // padded, a multiple of kBlock
  std::int64_t first_block = 0;  // number of blocks in the units before
};

// Part of one parameter that lies in some range of its unit.
struct Piece {
  std::size_t slot = 0;
  std::int64_t begin = 0;  // first element of the parameter, in row-major order
  std::int64_t count = 0;
  std::int64_t offset = 0;  // where it lies in the unit
};

class Layout {
 public:
  // Units with names and slots (names and shapes) filled in; offsets and sizes are computed here.
  Layout(std::vector<Unit> units, Mesh mesh);

  const std::vector<Unit>& units() const { return units_; }
  const Unit& unit(std::size_t index) const { return units_[index]; }
  const Mesh& mesh() const { return mesh_; }
  int num_ranks() const { return mesh_.num_ranks; }
  std::int64_t num_parameters() const { return num_parameters_; }  // without padding
  std::int64_t num_elements() const { return num_blocks_ * kBlock; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t largest_unit() const;

  // A unit is cut into one part a rank, in positions 0 .. num_ranks - 1 from its start. The owner
  // of a part sums its gradients and saves it. Parts of the replicas of one shard lie side by side,
  // so that a shard is contiguous; which rank gets the larger ones turns with the unit, so that
  // totals stay even.
  Range part(std::size_t unit, int position) const;
  Rank owner(std::size_t unit, int position) const;
  int position(std::size_t unit, Rank owner) const;
  Range owned(std::size_t unit, Rank rank) const { return part(unit, position(unit, rank)); }
  std::int64_t owned_elements(Rank rank) const;

  // The shard of the unit that a rank holds: its own part and those of its replicas. With groups of
  // one rank it is the whole unit, with one group its own part. May be empty.
  Range shard(std::size_t unit, Rank rank) const;
  // The positions of the parts in that shard: [first, first + num_groups).
  int first_position(std::size_t unit, Rank rank) const;
  std::int64_t shard_elements(Rank rank) const;
  std::int64_t largest_shard(Rank rank) const;

  // Returns the parts of parameters inside `range` of a unit; padding belongs to none.
  std::vector<Piece> pieces(std::size_t unit, Range range) const;

 private:
  int turned_place(std::size_t unit, int place, int direction) const;
  int turned_group(std::size_t unit, int group, int direction) const;

  std::vector<Unit> units_;
  Mesh mesh_;
  std::int64_t num_parameters_ = 0;
  std::int64_t num_blocks_ = 0;
};

// How an array is laid over the ranks of a shard group.
enum class Placement {
  kReplicated,  // every rank holds all of it
  kFlatShard,   // each holds its shard of every unit
};

// When gradients leave a rank.
enum class ReduceAt { kStep, kUnit };

// A strategy is a row of this table (DESIGN section 2), not a class.
struct Strategy {
  std::string name;
  Placement work;  // of the weights the network computes with; kFlatShard: whole only while in use
  Placement grad;
  Placement state;  // master and moments
  ReduceAt reduce_at;
};

// Returns the row named `name`; throws Config for a name that is not in the table.
const Strategy& strategy(const std::string& name);

// Returns the mesh of a strategy. `shard_size`: ranks in a shard group, for hsdp, where 0 means
// `ranks_per_node`. Throws Config for a size that does not divide the ranks, for one that another
// strategy has no use for, and for hsdp without a size where nodes have different numbers of ranks
// (`ranks_per_node` 0).
Mesh make_mesh(const Strategy& strategy, int num_ranks, int shard_size, int ranks_per_node);

}  // namespace trireme::parallel
