// Where every parameter lives: parameters form units, a unit is one flat padded range, and the
// range is cut into shards on block borders. Pure arithmetic: no MPI, no torch.
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

// A parameter inside a unit, in elements.
struct Slot {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t size = 0;
  std::int64_t offset = 0;  // from the unit's start
  bool trains = true;       // false: frozen, never updated
};

struct Unit {
  std::string name;
  std::vector<Slot> slots;
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
  Layout(std::vector<Unit> units, int num_ranks);

  const std::vector<Unit>& units() const { return units_; }
  const Unit& unit(std::size_t index) const { return units_[index]; }
  int num_ranks() const { return num_ranks_; }
  std::int64_t num_parameters() const { return num_parameters_; }  // without padding
  std::int64_t num_elements() const { return num_blocks_ * kBlock; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t largest_unit() const;

  // The range of the unit that a rank owns; may be empty. Over all ranks they tile the unit. Which
  // rank gets the larger parts turns with the unit, so that totals stay even.
  Range shard(std::size_t unit, Rank rank) const;
  std::int64_t shard_elements(Rank rank) const;

  // Returns the parts of parameters inside `range` of a unit; padding belongs to none.
  std::vector<Piece> pieces(std::size_t unit, Range range) const;

 private:
  std::vector<Unit> units_;
  int num_ranks_;
  std::int64_t num_parameters_ = 0;
  std::int64_t num_blocks_ = 0;
};

// How an array of state is laid over the ranks of one mesh axis.
enum class Placement {
  kReplicated,  // every rank of the axis holds all of it
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

// Returns the row named `name`; throws Config for a strategy that this version does not have.
const Strategy& strategy(const std::string& name);

}  // namespace trireme::parallel
