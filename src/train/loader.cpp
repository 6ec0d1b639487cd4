#include "trireme/train/loader.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/data/samplers/distributed.h>
#include <torch/torch.h>

#include <algorithm>

namespace trireme::train {

void LoaderState::set_even_batches(bool even) { dealing_.shards.even_batches = even; }

std::int64_t LoaderState::position() const {
  return step_ * data::Shards(dealing_.shards).step_size();
}

void LoaderState::seek_position(std::uint64_t epoch, std::int64_t samples) {
  const std::int64_t size = data::Shards(dealing_.shards).step_size();
  // The last step of an epoch may have been a short one of larger steps.
  const auto steps = num_steps();
  const bool over = steps && samples >= *steps * size;
  if (samples % size != 0 && !over) {
    throw Error(ErrorKind::kConfig,
                fmt::format("a loader stands at sample {} of its epoch, between two steps of {}",
                            samples, size),
                "go on with ranks and batch sizes whose steps divide it");
  }
  seek(epoch, over ? *steps : samples / size);
}

void check_lengths(comm::Communicator& world, std::uint64_t length) {
  const auto lengths = comm::all_gather_values(world, length, "lengths of a loader");
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    if (lengths[r] == lengths[0]) continue;
    Error error(ErrorKind::kConfig,
                fmt::format("rank 0 has a dataset of {} samples, rank {} one of {}", lengths[0], r,
                            lengths[r]),
                "give every rank the whole dataset: prepare() deals it");
    error.everywhere = true;
    throw error;
  }
}

void check_streams(comm::Communicator& world, std::int64_t num_fresh, bool last,
                   std::int64_t step) {
  struct Seen {
    std::int64_t num_fresh;
    std::int64_t last;
  };
  const auto all =
      comm::all_gather_values(world, Seen{num_fresh, last ? 1 : 0}, "samples of a stream");
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].num_fresh == all[0].num_fresh && all[r].last == all[0].last) continue;
    Error error(ErrorKind::kConfig,
                fmt::format("the stream of rank {} ends elsewhere than that of rank 0, at batch {}",
                            r, step),
                "give every rank the same stream, or set dispatch_batches");
    error.everywhere = true;
    throw error;
  }
}

SampledOrder::SampledOrder(std::shared_ptr<Sampler> sampler, std::uint64_t size)
    : sampler_(std::move(sampler)), dataset_size_(size) {
  if (dynamic_cast<torch::data::samplers::DistributedSampler<>*>(sampler_.get()) != nullptr) {
    throw Error(ErrorKind::kConfig, "a distributed sampler deals to ranks, and so does prepare()",
                "use RandomSampler or SequentialSampler, or shuffle: true");
  }
  set_epoch(0, 0);
}

void SampledOrder::set_epoch(std::uint64_t epoch, std::uint64_t seed) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = [&] {
    const std::lock_guard lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    generator.set_current_seed(mix(mix(seed, stream_key(0, "sampler")), epoch));
    return state;
  }();
  order_.clear();
  sampler_->reset(std::nullopt);
  while (const auto some = sampler_->next(std::max<std::uint64_t>(1, dataset_size_)))
    order_.insert(order_.end(), some->begin(), some->end());
  const std::lock_guard lock(generator.mutex());
  generator.set_state(before);
}

LoaderOptions options_from(const torch::data::DataLoaderOptions& options) {
  if (options.timeout()) {
    throw Error(ErrorKind::kConfig, "timeout: a loader here waits as long as its dataset takes",
                "leave it out");
  }
  LoaderOptions result;
  result.batch_size = static_cast<std::int64_t>(options.batch_size());
  result.drop_last = options.drop_last();
  result.num_workers = static_cast<int>(options.workers());
  if (options.max_jobs() && result.num_workers > 0)
    result.prefetch_factor =
        std::max(1, static_cast<int>(*options.max_jobs()) / result.num_workers);
  return result;
}

void check_options(const LoaderOptions& options) {
  const data::Shards checked({.batch_size = options.batch_size});
  if (options.num_workers >= 0 && options.prefetch_factor >= 1) return;
  throw Error(ErrorKind::kConfig,
              fmt::format("num_workers {} and prefetch_factor {}", options.num_workers,
                          options.prefetch_factor),
              "workers are 0 or more, and each is at least 1 batch ahead");
}

}  // namespace trireme::train
