// Loaders over datasets of all kinds, dealt to ranks: what ranks see together, whatever reads it.
#include "trireme/train/loader.hpp"

#include "comm/session.hpp"
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace trireme {
namespace {

using Numbers = std::vector<std::int64_t>;
using testing::session_options;

struct Map {
  std::size_t length;
  std::size_t size() const { return length; }
  std::int64_t get(std::size_t i) const { return static_cast<std::int64_t>(i); }
};

struct SlowMap : Map {
  std::int64_t get(std::size_t i) const {
    std::this_thread::sleep_for(std::chrono::microseconds(200 * (i % 5)));
    if (i == 1000) throw std::runtime_error("sample 1000 is bad");
    return static_cast<std::int64_t>(i);
  }
};

struct Stream {
  std::int64_t length;
  std::int64_t at = 0;
  void reset() { at = 0; }
  std::optional<std::int64_t> next() { return at < length ? std::optional(at++) : std::nullopt; }
};

struct TorchData : torch::data::datasets::Dataset<TorchData> {
  torch::data::Example<> get(std::size_t i) override {
    return {torch::full({2}, static_cast<float>(i)), torch::tensor(static_cast<std::int64_t>(i))};
  }
  std::optional<std::size_t> size() const override { return 11; }
};

struct TorchStream
    : torch::data::datasets::StatefulDataset<TorchStream, std::vector<std::int64_t>> {
  std::optional<std::vector<std::int64_t>> get_batch(std::size_t count) override {
    if (at == 7) return std::nullopt;
    std::vector<std::int64_t> batch;
    while (at < 7 && batch.size() < count) batch.push_back(at++);
    return batch;
  }
  std::optional<std::size_t> size() const override { return std::nullopt; }
  void reset() override { at = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  std::int64_t at = 0;
};

class Loaders : public ::testing::Test {
 protected:
  comm::Session session{nullptr, nullptr, session_options(0)};
  comm::Communicator& world = session.world();

  template <class Batch>
  Loader<Batch> dealt(Loader<Batch> loader, data::ShardOptions shards = {}) {
    shards.num_ranks = world.size();
    loader.core()->deal({shards, world.rank(), 5, &world, {}, {}});
    return loader;
  }

  // What all ranks see in an epoch, repeated samples cut off, step by step.
  template <class Batch>
  std::vector<Numbers> epoch(Loader<Batch>& loader) {
    std::vector<Numbers> steps;
    for (auto& batch : loader) {
      comm::ByteVector mine;
      train::pack(batch, mine);
      Numbers& step = steps.emplace_back();
      for (const auto& bytes : world.all_gather(mine, "batches")) {
        std::span<const std::byte> from = bytes;
        at::Tensor theirs;
        train::unpack(theirs, from);
        for (std::int64_t i = 0; i < theirs.numel(); ++i)
          step.push_back(theirs[i].item<std::int64_t>());
      }
      step.resize(static_cast<std::size_t>(std::min(std::ssize(step), loader.core()->num_fresh())));
    }
    return steps;
  }
  static Numbers joined(const std::vector<Numbers>& steps) {
    Numbers all;
    for (const Numbers& step : steps) all.insert(all.end(), step.begin(), step.end());
    return all;
  }
  static Numbers upto(std::int64_t n) {
    Numbers all(static_cast<std::size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
};

TEST_F(Loaders, give_every_sample_once_whatever_reads) {
  for (const bool dispatch : {false, true}) {
    const data::ShardOptions shards{.dispatch = dispatch};
    for (const int workers : {0, 2}) {
      auto map =
          dealt(make_loader(SlowMap{{23}}, {.batch_size = 2, .num_workers = workers}), shards);
      EXPECT_EQ(joined(epoch(map)), upto(23));
      auto stream =
          dealt(make_loader(Stream{23}, {.batch_size = 2, .num_workers = workers}), shards);
      EXPECT_EQ(joined(epoch(stream)), upto(23));
      EXPECT_EQ(joined(epoch(stream)), upto(23)) << "a second epoch";
    }
    auto torch_stream = dealt(make_loader(TorchStream(), {.batch_size = 3}), shards);
    EXPECT_EQ(joined(epoch(torch_stream)), upto(7));
    auto none = dealt(make_loader(Stream{0}, {.batch_size = 3}), shards);
    EXPECT_TRUE(epoch(none).empty());
    auto empty = dealt(make_loader(Map{0}, {.batch_size = 3}), shards);
    EXPECT_TRUE(epoch(empty).empty());
  }
}

TEST_F(Loaders, know_their_last_batch_and_their_length) {
  for (const std::size_t length : {1UL, 5UL, 12UL, 13UL}) {
    auto map = dealt(make_loader(Map{length}, {.batch_size = 3}));
    auto stream = dealt(make_loader(Stream{static_cast<std::int64_t>(length)}, {.batch_size = 3}));
    for (auto* core : {static_cast<train::LoaderState*>(map.core().get()),
                       static_cast<train::LoaderState*>(stream.core().get())}) {
      Numbers ends;
      auto& loader = core == map.core().get() ? map : stream;
      for (auto& batch : loader) {
        ends.push_back(loader.end_of_dataloader() ? 1 : 0);
        EXPECT_LE(batch.size(0), 3);
      }
      EXPECT_EQ(std::ssize(ends), map.size());
      EXPECT_EQ(std::accumulate(ends.begin(), ends.end(), 0), 1);
      EXPECT_EQ(ends.back(), 1);
    }
  }
}

TEST_F(Loaders, shuffle_alike_on_all_ranks_anew_each_epoch_and_go_on_in_the_middle) {
  auto loader = dealt(make_loader(Map{40}, {.batch_size = 3, .shuffle = true}));
  const auto first = epoch(loader);
  const auto second = epoch(loader);
  EXPECT_NE(first, second);
  Numbers sorted = joined(second);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, upto(40));
  auto again = dealt(make_loader(Map{40}, {.batch_size = 3, .shuffle = true}));
  again.core()->seek(1, 2);
  EXPECT_EQ(epoch(again), std::vector(second.begin() + 2, second.end()));
  EXPECT_EQ(again.epoch(), 2U);
  again.set_epoch(0);
  EXPECT_EQ(epoch(again), first);
  // A loop that is left early is an epoch, too.
  for ([[maybe_unused]] auto& batch : again) break;
  for ([[maybe_unused]] auto& batch : again) break;
  EXPECT_EQ(again.epoch(), 2U);
}

TEST_F(Loaders, streams_are_skipped_by_reading) {
  for (const bool dispatch : {false, true}) {
    auto stream = dealt(make_loader(Stream{23}, {.batch_size = 2}), {.dispatch = dispatch});
    const auto all = epoch(stream);
    stream.set_epoch(0);
    stream.skip(1);
    EXPECT_EQ(epoch(stream), std::vector(all.begin() + 1, all.end()));
  }
}

TEST_F(Loaders, take_datasets_and_samplers_of_torch) {
  auto plain = dealt(make_loader(TorchData(), {.batch_size = 2}));
  auto stacked = dealt(make_loader(TorchData().map(torch::data::transforms::Stack<>()),
                                   torch::data::samplers::RandomSampler(11), {.batch_size = 2}));
  for (auto& batch : plain) EXPECT_EQ(batch.data.size(1), 2);
  torch::manual_seed(
      static_cast<std::uint64_t>(world.rank().value));  // ranks differ here, and must not there
  Numbers all;
  for (auto& batch : stacked) {
    comm::ByteVector mine;
    train::pack(batch.target, mine);
    std::size_t fresh = static_cast<std::size_t>(stacked.core()->num_fresh());
    for (const auto& bytes : world.all_gather(mine, "targets")) {
      std::span<const std::byte> from = bytes;
      at::Tensor theirs;
      train::unpack(theirs, from);
      for (std::int64_t i = 0; i < theirs.numel() && fresh > 0; ++i, --fresh)
        all.push_back(theirs[i].item<std::int64_t>());
    }
  }
  EXPECT_NE(all, upto(11));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, upto(11));
  EXPECT_THROW(make_loader(TorchData(), torch::data::samplers::DistributedRandomSampler(11), {}),
               Error);
  EXPECT_THROW(
      make_loader(TorchData(), torch::data::samplers::RandomSampler(11), {.shuffle = true}), Error);
  auto like_torch = make_loader<torch::data::samplers::SequentialSampler>(
      TorchData(), torch::data::DataLoaderOptions().batch_size(4).workers(1));
  EXPECT_EQ(like_torch.size(), 3);
}

TEST_F(Loaders, pass_on_what_a_dataset_throws) {
  auto loader = make_loader(SlowMap{{1001}}, {.batch_size = 500, .num_workers = 2});
  EXPECT_THROW(
      {
        for ([[maybe_unused]] auto& batch : loader) {
        }
      },
      std::runtime_error);
}

TEST_F(Loaders, refuse_what_cannot_be) {
  EXPECT_THROW(make_loader(Map{4}, {.batch_size = 0}), Error);
  EXPECT_THROW(make_loader(Map{4}, {.num_workers = -1}), Error);
  EXPECT_THROW(make_loader(Stream{4}, {.shuffle = true}), Error);
  if (world.size() == 1) return;
  EXPECT_THROW(dealt(make_loader(Map{static_cast<std::size_t>(4 + world.rank().value)}, {})),
               Error);
  auto uneven = dealt(make_loader(Stream{4 + world.rank().value}, {}));
  EXPECT_THROW(epoch(uneven), Error);
}

// Ranks without data left get stand-ins that do not count.
TEST_F(Loaders, joined_have_equally_many_steps) {
  auto loader = dealt(make_loader(Map{7}, {.batch_size = 2}), {.even_batches = false});
  loader.core()->join(true);
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  for (auto& batch : loader) {
    ++steps;
    if (loader.core()->counts()) rows += batch.size(0);
  }
  std::int64_t total = 0;
  for (const auto theirs : comm::all_gather_values(world, rows, "rows")) total += theirs;
  EXPECT_EQ(total, 7);
  for (const auto theirs : comm::all_gather_values(world, steps, "steps")) EXPECT_EQ(theirs, steps);
}

}  // namespace
}  // namespace trireme
