// Which rank computes which micro-batch, and in which order gradients are added, so that the sum is
// the same to the bit for any assignment (DESIGN section 4). Pure arithmetic.
//
// The order of addition is that of a binary counter over the micro-batch index m: ((0+1)+(2+3))+...
// . A contiguous block whose length is a power of two, and the N consecutive micro-batches of N =
// 2^n ranks, are both subtrees of it.
#pragma once

#include "trireme/parallel/layout.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::parallel {

// The micro-batches of one step for one rank. After each round the ranks' sums are added over the
// ranks; the rounds are added in binary-counter order. A rank may have none in the last round.
struct Assignment {
  std::vector<std::vector<std::int64_t>> rounds;  // this rank's micro-batch indices, by round
  std::int64_t longest_round = 0;                 // most micro-batches that any rank has in a round
  std::string inexact;  // why results depend on the number of ranks; empty when they do not
};

// `num_micro_batches` per step over all ranks. Throws Config when there are fewer micro-batches
// than ranks.
Assignment assign_micro_batches(ReduceAt reduce_at, std::int64_t num_micro_batches, int num_ranks,
                                Rank rank);

// Where a binary counter over n leaves splits: the left subtree has the largest power of two below
// n leaves.
std::int64_t left_leaves(std::int64_t leaves);

// Number of buffers that a binary counter over n items needs when odd items are added straight into
// the lowest buffer.
int counter_levels(std::int64_t items);

}  // namespace trireme::parallel
