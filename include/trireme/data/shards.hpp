// How an epoch's samples are dealt to ranks: pure arithmetic on positions in the epoch's order, so
// that any step of any rank is found in O(1) and all ranks know beforehand how many steps there are.
//
// An epoch is cut into steps of batch_size samples a rank (of batch_size samples in all, with
// split_batches). In a step the ranks take neighbouring slices in rank order: over the steps a
// loader's batches go round. What happens to a last step that is not full is the rule's Tail.
#pragma once

#include "trireme/base/units.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::data {

// What becomes of the samples that do not fill a step.
enum class Tail {
  kDrop,      // left out
  kShort,     // ranks get fewer of them, or none
  kComplete,  // the first samples of the epoch fill up what is missing
  kDispatch,  // dealt out evenly; where they do not divide, first samples fill up
};

struct ShardOptions {
  int num_ranks = 1;
  std::int64_t batch_size = 1;  // as the user's loader has it
  bool split_batches = false;   // the batch is of all ranks together
  bool even_batches = true;     // every rank has equally many, equally large batches
  bool drop_last = false;
  bool dispatch = false;  // one rank reads for all
};

class Shards {
 public:
  // Throws Config for a batch that the ranks cannot split, or of no samples.
  explicit Shards(const ShardOptions& options);

  int num_ranks() const { return num_ranks_; }
  std::int64_t batch_size() const { return batch_size_; }              // of one rank
  std::int64_t step_size() const { return batch_size_ * num_ranks_; }  // of all ranks
  Tail tail() const { return tail_; }

  // Returns how many batches `rank` has in an epoch of `length` samples.
  std::int64_t num_batches(Rank rank, std::uint64_t length) const;
  // Returns how many steps the epoch has: the batches of the rank with the most.
  std::int64_t num_steps(std::uint64_t length) const { return num_batches(Rank(0), length); }

  // Returns the positions in the epoch's order of the samples of a rank's batch; none where it has
  // no batch. `first_read`: the first step that is read at all, where reading begins later in the
  // epoch: a dispatched tail is filled up with what was read.
  std::vector<std::uint64_t> batch(Rank rank, std::int64_t step, std::uint64_t length,
                                   std::int64_t first_read = 0) const;

  // Returns how many samples of a step are there for the first time; repeated ones come last, in
  // rank order.
  std::int64_t num_fresh(std::int64_t step, std::uint64_t length) const;

 private:
  int num_ranks_;
  std::int64_t batch_size_;
  Tail tail_;
};

// The same for a sampler that makes its own batches, of any sizes: batch k of the epoch's `count`
// goes to rank k % num_ranks. Returns the batch of a rank's step; none where it has none. With
// `even`, the first batches take the place of those missing from the last step.
std::optional<std::int64_t> dealt_batch(Rank rank, std::int64_t step, std::int64_t count,
                                        int num_ranks, bool even);

}  // namespace trireme::data
