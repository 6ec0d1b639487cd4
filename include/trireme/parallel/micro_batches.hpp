// Which rank computes which micro-batch, and in which order gradients are added, so that the sum is
// the same to the bit for any assignment (DESIGN section 4). Pure arithmetic.
//
// The order of addition is that of a binary counter over the micro-batch index m: ((0+1)+(2+3))+...
// . A contiguous block whose length is a power of two, and the N consecutive micro-batches of N =
// 2^n ranks, are both subtrees of it.
#pragma once

#include "trireme/base/units.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::parallel {

// A turn in which a rank has no micro-batch of its own, but keeps step with its team.
inline constexpr std::int64_t kIdleTurn = -1;

// The micro-batches of one step for one rank. A step is made of rounds, a round of turns. In a turn
// every rank of a team computes one micro-batch, and the team's gradients are added; the sums of
// turns are added in binary-counter order; after a round the sums of all teams are added, and those
// of the rounds in binary-counter order again.
//
// A team of one rank (ddp, zero1) makes a rank's turns its own affair, so that only rounds
// communicate; one team of all ranks (zero2, zero3) has all turns in one round.
struct Assignment {
  std::vector<std::vector<std::int64_t>> rounds;  // by turn: a micro-batch index or kIdleTurn
  std::string inexact;  // why results depend on the number of ranks; empty when they do not

  std::int64_t num_rounds() const { return static_cast<std::int64_t>(rounds.size()); }
  std::int64_t num_turns() const;  // of all rounds together
};

// `num_micro_batches` >= 1 per step over all ranks, `team_size` consecutive ranks to a team. Ranks
// without work have idle turns or none.
Assignment assign_micro_batches(std::int64_t num_micro_batches, int num_ranks, int team_size,
                                Rank rank);

// For a loop that deals micro-batches to ranks in turn: in turn t, rank r computes t * num_ranks + r.
// At most `max_turns` a step; ranks that add together do so after every turn.
Assignment deal_micro_batches(std::int64_t max_turns, int num_ranks, int team_size, Rank rank);

// Throws Config when a step has fewer micro-batches than there are ranks.
void require_work_for_all(std::int64_t num_micro_batches, int num_ranks);

// Where a binary counter over n leaves splits: the left subtree has the largest power of two below
// n leaves.
std::int64_t left_leaves(std::int64_t leaves);

// Number of buffers that a binary counter over n items needs when odd items are added straight into
// the lowest buffer.
int counter_levels(std::int64_t items);

}  // namespace trireme::parallel
