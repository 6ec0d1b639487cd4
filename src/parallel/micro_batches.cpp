#include "trireme/parallel/micro_batches.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace trireme::parallel {

namespace {

std::string why_inexact(std::int64_t micro_batches, int ranks) {
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    return fmt::format(
        "{} ranks: their sums are not a subtree of the order of addition (1, 2, 4, 8 ... ranks "
        "are)",
        ranks);
  }
  if (micro_batches % ranks != 0) {
    return fmt::format("{} ranks do not divide the {} micro-batches of a step", ranks,
                       micro_batches);
  }
  return {};
}

// Round j: micro-batch j N + r, one per rank.
void assign_strided(std::int64_t micro_batches, int ranks, Rank rank, Assignment& result) {
  for (std::int64_t first = 0; first < micro_batches; first += ranks) {
    auto& round = result.rounds.emplace_back();
    if (first + rank.value < micro_batches) round.push_back(first + rank.value);
  }
  result.longest_round = 1;
}

// Contiguous blocks inside aligned groups of 2^a micro-batches, the largest power of two that
// divides their number: each rank's part is a subtree, so one reduction a group suffices (one a
// step where the number is a power of two).
void assign_blocks(std::int64_t micro_batches, int ranks, Rank rank, Assignment& result) {
  const std::int64_t group =
      result.inexact.empty()
          ? std::int64_t{1} << std::countr_zero(static_cast<std::uint64_t>(micro_batches))
          : micro_batches;
  for (std::int64_t first = 0; first < micro_batches; first += group) {
    auto& round = result.rounds.emplace_back();
    const std::int64_t begin = first + group * rank.value / ranks;
    const std::int64_t end = first + group * (rank.value + 1) / ranks;
    for (std::int64_t m = begin; m < end; ++m) round.push_back(m);
  }
  result.longest_round = (group + ranks - 1) / ranks;
}

}  // namespace

Assignment assign_micro_batches(ReduceAt reduce_at, std::int64_t num_micro_batches, int num_ranks,
                                Rank rank) {
  if (num_micro_batches < num_ranks) {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("{} ranks, but a step has only {} micro-batches: some ranks would have no work",
                    num_ranks, num_micro_batches),
        fmt::format("start at most {} ranks, lower train.micro_batch_size, or raise "
                    "train.global_batch_size",
                    num_micro_batches));
  }
  Assignment result;
  result.inexact = why_inexact(num_micro_batches, num_ranks);
  if (reduce_at == ReduceAt::kUnit) {
    assign_strided(num_micro_batches, num_ranks, rank, result);
  } else {
    assign_blocks(num_micro_batches, num_ranks, rank, result);
  }
  return result;
}

std::int64_t left_leaves(std::int64_t leaves) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(leaves - 1)));
}

int counter_levels(std::int64_t items) {
  return items <= 2 ? 1 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(items - 1)));
}

}  // namespace trireme::parallel
