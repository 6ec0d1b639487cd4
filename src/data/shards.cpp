#include "trireme/data/shards.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::data {

namespace {

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t batch_of_a_rank(const ShardOptions& options) {
  if (options.batch_size < 1) {
    throw Error(ErrorKind::kConfig, fmt::format("batch_size is {}", options.batch_size),
                "it must be at least 1");
  }
  if (!options.split_batches) return options.batch_size;
  if (options.batch_size % options.num_ranks != 0) {
    throw Error(ErrorKind::kConfig,
                fmt::format("split_batches: a batch of {} cannot be split over {} ranks",
                            options.batch_size, options.num_ranks),
                "make batch_size a multiple of the number of ranks, or leave split_batches out");
  }
  return options.batch_size / options.num_ranks;
}

Tail tail_of(const ShardOptions& options) {
  if (options.drop_last) return Tail::kDrop;
  if (options.dispatch) return Tail::kDispatch;
  // A single rank has nobody to be even with.
  return options.even_batches && options.num_ranks > 1 ? Tail::kComplete : Tail::kShort;
}

}  // namespace

Shards::Shards(const ShardOptions& options)
    : num_ranks_(options.num_ranks),
      batch_size_(batch_of_a_rank(options)),
      tail_(tail_of(options)) {}

std::int64_t Shards::num_batches(Rank rank, std::uint64_t length) const {
  const auto samples = static_cast<std::int64_t>(length);
  const std::int64_t full = samples / step_size();
  const std::int64_t rest = samples % step_size();
  if (rest == 0 || tail_ == Tail::kDrop) return full;
  const bool has_one = tail_ != Tail::kShort || rank.value * batch_size_ < rest;
  return full + (has_one ? 1 : 0);
}

std::vector<std::uint64_t> Shards::batch(Rank rank, std::int64_t step, std::uint64_t length,
                                         std::int64_t first_read) const {
  if (step < 0 || step >= num_batches(rank, length)) return {};
  const auto samples = static_cast<std::int64_t>(length);
  const std::int64_t rest = num_fresh(step, length);
  const bool even_share = tail_ == Tail::kDispatch && rest < step_size();
  const std::int64_t size = even_share ? divided_up(rest, num_ranks_) : batch_size_;
  const std::int64_t first = step * step_size() + rank.value * size;
  const std::int64_t last = tail_ == Tail::kShort ? std::min(first + size, samples) : first + size;
  // Missing samples are those of the first step again, round and round if there are few.
  const std::int64_t fill_from = even_share ? first_read * step_size() : 0;
  const std::int64_t fill =
      std::min(samples - fill_from, even_share ? std::int64_t{num_ranks_} : step_size());
  std::vector<std::uint64_t> positions;
  for (std::int64_t p = first; p < last; ++p) {
    positions.push_back(
        static_cast<std::uint64_t>(p < samples ? p : fill_from + (p - samples) % fill));
  }
  return positions;
}

std::int64_t Shards::num_fresh(std::int64_t step, std::uint64_t length) const {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(length) - step * step_size(), 0,
                                  step_size());
}

std::optional<std::int64_t> dealt_batch(Rank rank, std::int64_t step, std::int64_t count,
                                        int num_ranks, bool even) {
  const std::int64_t batch = step * num_ranks + rank.value;
  if (batch < count) return batch;
  const bool round_has_some = step * num_ranks < count;
  if (!even || !round_has_some) return std::nullopt;
  return (batch - count) % std::min<std::int64_t>(count, num_ranks);
}

}  // namespace trireme::data
