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

// The micro-batches that the teams add between two reductions over all of them: an aligned group of
// 2^a, the largest power of two that divides their number, so that each team's part of it is a
// subtree. A single team needs no reduction but the last.
std::int64_t round_size(std::int64_t micro_batches, int num_teams, bool exact) {
  if (num_teams == 1 || !exact) return micro_batches;
  return std::int64_t{1} << std::countr_zero(static_cast<std::uint64_t>(micro_batches));
}

}  // namespace

std::int64_t Assignment::num_turns() const {
  std::int64_t turns = 0;
  for (const auto& round : rounds) turns += static_cast<std::int64_t>(round.size());
  return turns;
}

Assignment assign_micro_batches(std::int64_t num_micro_batches, int num_ranks, int team_size,
                                Rank rank) {
  ensure(num_micro_batches >= 1, "a step has a micro-batch");
  const int num_teams = num_ranks / team_size;
  const std::int64_t team = rank.value / team_size;
  const std::int64_t place = rank.value % team_size;
  Assignment result;
  result.inexact = why_inexact(num_micro_batches, num_ranks);
  const std::int64_t size = round_size(num_micro_batches, num_teams, result.inexact.empty());
  for (std::int64_t first = 0; first < num_micro_batches; first += size) {
    auto& round = result.rounds.emplace_back();
    const std::int64_t begin = first + size * team / num_teams;
    const std::int64_t end = first + size * (team + 1) / num_teams;
    for (std::int64_t turn = begin; turn < end; turn += team_size) {
      round.push_back(turn + place < end ? turn + place : kIdleTurn);
    }
  }
  return result;
}

Assignment deal_micro_batches(std::int64_t max_turns, int num_ranks, int team_size, Rank rank) {
  ensure(max_turns >= 1, "a step has a turn");
  Assignment result;
  result.inexact = why_inexact(num_ranks, num_ranks);
  const bool one_team = team_size == num_ranks;
  result.rounds.resize(one_team ? 1 : static_cast<std::size_t>(max_turns));
  for (std::int64_t turn = 0; turn < max_turns; ++turn) {
    result.rounds[one_team ? 0 : static_cast<std::size_t>(turn)].push_back(turn * num_ranks +
                                                                           rank.value);
  }
  return result;
}

void require_work_for_all(std::int64_t num_micro_batches, int num_ranks) {
  if (num_micro_batches >= num_ranks) return;
  throw Error(
      ErrorKind::kConfig,
      fmt::format("{} ranks, but a step has only {} micro-batches: some ranks would have no work",
                  num_ranks, num_micro_batches),
      fmt::format("start at most {} ranks, lower train.micro_batch_size, or raise "
                  "train.global_batch_size",
                  num_micro_batches));
}

std::int64_t left_leaves(std::int64_t leaves) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(leaves - 1)));
}

int counter_levels(std::int64_t items) {
  return items <= 2 ? 1 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(items - 1)));
}

}  // namespace trireme::parallel
