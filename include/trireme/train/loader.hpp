// Batches of any user's dataset, dealt to ranks. What a dataset can be:
//
//   a map      of torch (get_batch(indices), size(), with or without Stack), or anything with
//              size() and get(index)
//   a stream   of torch (StatefulDataset: reset(), get_batch(n)), or anything with reset() and
//              std::optional<Sample> next()
//
//   auto loader = make_loader(dataset, {.batch_size = 8, .shuffle = true, .num_workers = 2});
//   for (auto& batch : accelerator.prepare(loader)) ...
//
// A loader works by itself, for one process; Accelerator::prepare deals it (data/shards.hpp says
// how). Every iteration over it is an epoch. The order of an epoch is a function of seed and epoch,
// so a position is two numbers: any step is reached at once, streams excepted, which must be read.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/data/order.hpp"
#include "trireme/data/shards.hpp"
#include "trireme/train/ahead.hpp"
#include "trireme/train/tensors.hpp"

#include <torch/data/dataloader_options.h>
#include <torch/data/samplers.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

struct LoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;  // maps only; the order is computed, not stored
  bool drop_last = false;
  int num_workers = 0;      // threads that read ahead, each with a dataset of its own
  int prefetch_factor = 2;  // batches that each is ahead
};

// How prepare() deals loaders.
struct DataLoaderConfiguration {
  bool split_batches = false;
  std::optional<bool> dispatch_batches = {};  // unset: streams are dispatched, maps are not
  bool even_batches = true;
  std::optional<std::uint64_t> data_seed = {};  // unset: the accelerator's
};

namespace train {

// Reads batches of one dataset. Not for several threads.
template <class Batch>
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual std::unique_ptr<BatchSource> copy() const = 0;
  virtual bool is_stream() const = 0;
  // Maps: the number of samples. Streams: reads up to position `until` and returns how many samples
  // there are at least, all of them if they are fewer.
  virtual std::uint64_t reach(std::uint64_t until) = 0;
  // Streams: starts an epoch; samples before `keep_from` are forgotten but for the first `keep`.
  virtual void restart() {}
  virtual void forget_before(std::uint64_t /*position*/, std::uint64_t /*keep*/) {}
  virtual Batch read(const std::vector<std::uint64_t>& samples) = 0;
};

// A map's order of samples in an epoch.
class EpochOrder {
 public:
  virtual ~EpochOrder() = default;
  virtual void set_epoch(std::uint64_t epoch, std::uint64_t seed) = 0;
  virtual std::uint64_t sample_at(std::uint64_t position) const = 0;
  virtual std::uint64_t size() const = 0;
};

// Where loaders of all types look alike to the accelerator.
class LoaderState {
 public:
  struct Dealing {
    data::ShardOptions shards;
    Rank rank;
    std::uint64_t seed = 0;
    comm::Communicator* world = nullptr;  // null: one process by itself
    std::function<void(LoaderState&, bool active)> on_epoch;
    std::function<void(LoaderState&)> on_batch;
  };
  virtual ~LoaderState() = default;

  // @collective. Throws Config where ranks have different numbers of samples, or the ranks cannot
  // split the batch.
  virtual void deal(Dealing dealing) = 0;
  virtual const LoaderOptions& options() const = 0;
  virtual bool is_stream() const = 0;

  bool is_dealt() const { return dealing_.world != nullptr; }
  std::uint64_t epoch() const { return epoch_; }
  std::int64_t step() const { return step_; }  // batches handed out in this epoch
  // The position in samples of all ranks, whatever their number. Throws Config where a number of
  // samples is between two steps.
  std::int64_t position() const;
  void seek_position(std::uint64_t epoch, std::int64_t samples);
  void seek(std::uint64_t epoch, std::int64_t step) {
    epoch_ = epoch;
    step_ = step;
    sought_ = true;
  }
  // Of the batch at hand.
  bool end_of_loader() const { return end_of_loader_; }
  std::int64_t num_fresh() const { return num_fresh_; }      // samples of all ranks, none repeated
  std::int64_t num_samples() const { return num_samples_; }  // of this rank's batch
  bool counts() const { return counts_; }  // not a stand-in for a rank that has no more data
  // With even_batches false: whether ranks that have no more data get stand-ins.
  void join(bool joined) { joined_ = joined; }
  void set_even_batches(bool even);
  bool even_batches() const { return dealing_.shards.even_batches; }
  const Dealing& dealing() const { return dealing_; }
  // For evaluations: every sample once, in batches of the order that one rank has; ranks that have no
  // more get stand-ins.
  void deal_exactly() {
    dealing_.shards.even_batches = false;
    dealing_.shards.dispatch = false;
    joined_ = true;
  }
  // Steps of this rank in an epoch; none for a stream.
  virtual std::optional<std::int64_t> num_steps() const = 0;
  // Of this epoch at least so many batches are left, `most` at most; streams read ahead for it.
  virtual std::int64_t batches_left(std::int64_t most) = 0;

 protected:
  Dealing dealing_;
  std::uint64_t epoch_ = 0;
  std::int64_t step_ = 0;
  bool sought_ = false;
  bool end_of_loader_ = false;
  std::int64_t num_fresh_ = 0;
  std::int64_t num_samples_ = 0;
  bool counts_ = true;
  bool joined_ = false;
};

// What was read for one step.
template <class Batch>
struct StepBatches {
  std::vector<Batch> batches;  // this rank's; with dispatch, rank 0 has those of all, others none
  std::int64_t num_fresh = 0;
  std::vector<std::int64_t> num_samples = {};  // of each batch
  bool last = false;
  bool ended = false;  // there is no such step
  bool counts = true;
};

// Reads the steps of an epoch, in order.
template <class Batch>
class EpochReader {
 public:
  EpochReader(BatchSource<Batch>& source, const EpochOrder* order,
              const LoaderState::Dealing& dealing, bool joined, std::int64_t first_step)
      : source_(source),
        order_(order),
        dealing_(dealing),
        shards_(dealing.shards),
        joined_(joined),
        first_step_(first_step) {}

  StepBatches<Batch> operator()(std::int64_t step) {
    const auto size = static_cast<std::uint64_t>(shards_.step_size());
    const auto at = static_cast<std::uint64_t>(step) * size;
    num_read_.clear();
    source_.forget_before(at, size);
    // One sample more tells whether this step is the last.
    const std::uint64_t length = source_.reach(at + size + 1);
    StepBatches<Batch> result;
    const std::int64_t steps =
        joined_ ? shards_.num_steps(length) : steps_of(dealing_.rank, length);
    result.ended = step >= steps;
    result.last = step + 1 >= steps;
    result.num_fresh = shards_.num_fresh(step, length);
    if (result.ended) return result;
    if (!dealing_.shards.dispatch) {
      result.counts = step < steps_of(dealing_.rank, length);
      result.batches.push_back(result.counts ? read(dealing_.rank, step, length)
                                             : read(Rank(0), 0, length));
    } else if (dealing_.rank.value == 0) {
      for (int rank = 0; rank < shards_.num_ranks(); ++rank)
        result.batches.push_back(read(Rank(rank), step, length));
    }
    result.num_samples = num_read_;
    return result;
  }

 private:
  std::int64_t steps_of(Rank rank, std::uint64_t length) const {
    return shards_.num_batches(rank, length);
  }
  Batch read(Rank rank, std::int64_t step, std::uint64_t length) {
    const std::int64_t first_read = source_.is_stream() ? 0 : first_step_;
    std::vector<std::uint64_t> samples = shards_.batch(rank, step, length, first_read);
    if (order_ != nullptr) {
      for (std::uint64_t& sample : samples) sample = order_->sample_at(sample);
    }
    num_read_.push_back(std::ssize(samples));
    return source_.read(samples);
  }

  BatchSource<Batch>& source_;
  const EpochOrder* order_;
  LoaderState::Dealing dealing_;
  data::Shards shards_;
  bool joined_;
  std::int64_t first_step_;
  std::vector<std::int64_t> num_read_;  // samples of the batches of the step at hand
};

void check_lengths(comm::Communicator& world, std::uint64_t length);
void check_streams(comm::Communicator& world, std::int64_t num_fresh, bool last, std::int64_t step);

template <class Batch>
class LoaderCore : public LoaderState {
 public:
  using Step = StepBatches<Batch>;

  LoaderCore(std::unique_ptr<BatchSource<Batch>> source, std::unique_ptr<EpochOrder> order,
             LoaderOptions options)
      : source_(std::move(source)), order_(std::move(order)), options_(options) {
    dealing_.shards.batch_size = options_.batch_size;
    dealing_.shards.drop_last = options_.drop_last;
  }

  void deal(Dealing dealing) override {
    dealing.shards.batch_size = options_.batch_size;
    dealing.shards.drop_last = options_.drop_last;
    dealing_ = std::move(dealing);
    const data::Shards checked(dealing_.shards);
    if (!is_stream()) check_lengths(*dealing_.world, order_->size());
  }
  const LoaderOptions& options() const override { return options_; }
  bool is_stream() const override { return source_->is_stream(); }
  std::optional<std::int64_t> num_steps() const override {
    if (is_stream()) return std::nullopt;
    const data::Shards shards(dealing_.shards);
    return joined_ ? shards.num_steps(order_->size())
                   : shards.num_batches(dealing_.rank, order_->size());
  }
  std::int64_t batches_left(std::int64_t most) override {
    if (const auto all = num_steps()) return std::min(most, *all - step_);
    return std::min<std::int64_t>(most, ahead_ && !end_of_loader_ ? most : 0);
  }

  // Begins an epoch: the one sought, or the next.
  void begin() {
    if (!std::exchange(sought_, false) && step_ > 0) seek_next_epoch();
    if (const auto steps = num_steps(); steps && *steps > 0 && step_ >= *steps) seek_next_epoch();
    sought_ = false;
    end_of_loader_ = false;
    make_ahead();
    if (dealing_.on_epoch) dealing_.on_epoch(*this, true);
  }

  // The next batch of this rank; none at the end. @collective with dispatch and for streams.
  std::optional<Batch> next() {
    if (end_of_loader_) return finish();
    Step read = ahead_->next();
    if (source_->is_stream() && !dealing_.shards.dispatch && dealing_.world != nullptr)
      check_streams(*dealing_.world, read.ended ? -1 : read.num_fresh, read.last, step_);
    if (dealing_.shards.dispatch) dispatch(read);
    if (read.ended) return finish();
    num_fresh_ = read.num_fresh;
    num_samples_ = read.num_samples.at(0);
    end_of_loader_ = read.last;
    counts_ = read.counts;
    ++step_;
    if (dealing_.on_batch) dealing_.on_batch(*this);
    return std::move(read.batches.at(0));
  }

  // Ends an epoch, also one that was left early.
  void end() {
    if (ahead_ && dealing_.on_epoch) dealing_.on_epoch(*this, false);
    ahead_.reset();
    end_of_loader_ = false;
  }

 private:
  void seek_next_epoch() {
    ++epoch_;
    step_ = 0;
  }

  std::optional<Batch> finish() {
    end();
    return std::nullopt;
  }

  void make_ahead() {
    ahead_.reset();
    if (order_) order_->set_epoch(epoch_, dealing_.seed);
    const bool reads = !dealing_.shards.dispatch || dealing_.rank.value == 0;
    const auto reader_of = [this](BatchSource<Batch>& source) {
      return EpochReader<Batch>(source, order_.get(), dealing_, joined_, step_);
    };
    if (!reads) {
      ahead_ = std::make_unique<Ahead<Step>>([](std::int64_t) { return Step{}; }, step_);
    } else if (is_stream()) {
      source_->restart();
      ahead_ = std::make_unique<Ahead<Step>>(
          reader_of(*source_), step_, options_.num_workers > 0 ? options_.prefetch_factor : 0);
    } else if (options_.num_workers == 0) {
      ahead_ = std::make_unique<Ahead<Step>>(reader_of(*source_), step_);
    } else {
      while (std::ssize(copies_) < options_.num_workers) copies_.push_back(source_->copy());
      std::vector<std::function<Step(std::int64_t)>> readers;
      for (const auto& copy : copies_) readers.push_back(reader_of(*copy));
      ahead_ = std::make_unique<Ahead<Step>>(std::move(readers), step_,
                                             options_.num_workers * options_.prefetch_factor);
    }
  }

  // Rank 0 gives everybody their batch, and says what kind of step it is.
  void dispatch(Step& read) {
    std::vector<comm::Message> out;
    if (dealing_.rank.value == 0) {
      for (int rank = 0; rank < dealing_.shards.num_ranks; ++rank) {
        comm::Message& message = out.emplace_back(comm::Message{Rank(rank), {}});
        pack(read.ended, message.bytes);
        pack(read.last, message.bytes);
        pack(read.num_fresh, message.bytes);
        if (read.ended) continue;
        pack(read.num_samples[static_cast<std::size_t>(rank)], message.bytes);
        pack(read.batches[static_cast<std::size_t>(rank)], message.bytes);
      }
    }
    if (dealing_.world == nullptr) return;
    const auto received = dealing_.world->exchange(std::move(out), "dispatch batches");
    std::span<const std::byte> from = received.at(0).bytes;
    unpack(read.ended, from);
    unpack(read.last, from);
    unpack(read.num_fresh, from);
    if (read.ended) return;
    read.num_samples.resize(1);
    read.batches.resize(1);
    unpack(read.num_samples[0], from);
    unpack(read.batches[0], from);
  }

  std::unique_ptr<BatchSource<Batch>> source_;
  std::unique_ptr<EpochOrder> order_;  // null for streams
  LoaderOptions options_;
  std::vector<std::unique_ptr<BatchSource<Batch>>> copies_;
  std::unique_ptr<Ahead<Step>> ahead_;
};

}  // namespace train

// Handles share one loader.
template <class Batch>
class Loader {
 public:
  using BatchType = Batch;
  struct End {};
  class Iterator {
   public:
    explicit Iterator(std::shared_ptr<train::LoaderCore<Batch>> core) : core_(std::move(core)) {
      core_->begin();
      batch_ = core_->next();
    }
    Iterator(Iterator&&) noexcept = default;
    Iterator(const Iterator&) = delete;
    Iterator& operator=(const Iterator&) = delete;
    ~Iterator() {
      if (core_) core_->end();  // a loop that was left early
    }
    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      batch_ = core_->next();
      return *this;
    }
    bool operator==(End /*end*/) const { return !batch_; }

   private:
    std::shared_ptr<train::LoaderCore<Batch>> core_;
    std::optional<Batch> batch_;
  };

  explicit Loader(std::shared_ptr<train::LoaderCore<Batch>> core) : core_(std::move(core)) {}

  // Begins an epoch. @collective where rank 0 reads for all, and for streams.
  Iterator begin() { return Iterator(core_); }
  End end() const { return {}; }

  // Batches of this rank in an epoch; throws Config for a stream.
  std::int64_t size() const {
    if (const auto steps = core_->num_steps()) return *steps;
    throw Error(ErrorKind::kConfig, "a loader over a stream has no length");
  }
  // The epoch that the next loop runs through, or the one at hand.
  std::uint64_t epoch() const {
    const auto steps = core_->num_steps();
    const bool over = steps && *steps > 0 && core_->step() >= *steps;
    return core_->epoch() + (over ? 1 : 0);
  }
  // The next loop is epoch `epoch`.
  void set_epoch(std::uint64_t epoch) { core_->seek(epoch, 0); }
  // The next loop begins at this batch of its epoch.
  void skip(std::int64_t num_batches) { core_->seek(epoch(), num_batches); }
  bool end_of_dataloader() const { return core_->end_of_loader(); }
  const std::shared_ptr<train::LoaderCore<Batch>>& core() const { return core_; }

 private:
  std::shared_ptr<train::LoaderCore<Batch>> core_;
};

namespace train {

template <class D>
concept TorchMap = requires(D& dataset, std::vector<std::size_t> indices) {
  dataset.get_batch(indices);
  { *dataset.size() } -> std::convertible_to<std::size_t>;
};
template <class D>
concept UserMap = requires(D& dataset, std::size_t index) {
  { dataset.size() } -> std::convertible_to<std::size_t>;
  dataset.get(index);
};
template <class D>
concept UserStream = requires(D& dataset) {
  dataset.reset();
  dataset.next().value();
};
template <class D>
concept TorchStream = requires(D& dataset, std::size_t count) {
  dataset.reset();
  dataset.get_batch(count).value();
};

template <class D>
auto read_map(D& dataset, const std::vector<std::uint64_t>& samples) {
  if constexpr (TorchMap<D>) {
    auto batch = dataset.get_batch(std::vector<std::size_t>(samples.begin(), samples.end()));
    if constexpr (detail::IsVector<decltype(batch)>::value) {
      return collate(std::move(batch));
    } else {
      return batch;
    }
  } else {
    std::vector<std::remove_cvref_t<decltype(dataset.get(0))>> batch;
    for (const std::uint64_t sample : samples) batch.push_back(dataset.get(sample));
    return collate(std::move(batch));
  }
}

template <class D>
std::uint64_t size_of_map(const D& dataset) {
  if constexpr (std::is_convertible_v<decltype(dataset.size()), std::size_t>) {
    return dataset.size();
  } else {
    if (const auto size = dataset.size()) return *size;
    throw Error(ErrorKind::kConfig, "a dataset that is read by index does not know its size",
                "return it from size()");
  }
}

template <class D>
class MapSource : public BatchSource<decltype(read_map(std::declval<D&>(), {}))> {
 public:
  using Batch = decltype(read_map(std::declval<D&>(), {}));
  explicit MapSource(D dataset) : dataset_(std::move(dataset)), size_(size_of_map(dataset_)) {}
  std::unique_ptr<BatchSource<Batch>> copy() const override {
    if constexpr (std::is_copy_constructible_v<D>) {
      return std::make_unique<MapSource>(dataset_);
    } else {
      throw Error(ErrorKind::kConfig, "num_workers needs a dataset that can be copied",
                  "set num_workers to 0, or share what is large inside the dataset");
    }
  }
  bool is_stream() const override { return false; }
  std::uint64_t reach(std::uint64_t /*until*/) override { return size_; }
  Batch read(const std::vector<std::uint64_t>& samples) override {
    return read_map(dataset_, samples);
  }
  std::uint64_t size() const { return size_; }

 private:
  D dataset_;
  std::uint64_t size_;
};

// One sample after the other, by either name.
template <class D>
auto next_sample(D& dataset) {
  if constexpr (UserStream<D>) {
    return dataset.next();
  } else {
    auto batch = dataset.get_batch(1);
    using Sample = std::remove_cvref_t<decltype(batch.value()[0])>;
    return batch && !batch->empty() ? std::optional<Sample>((*batch)[0]) : std::nullopt;
  }
}

template <class D>
class StreamSource
    : public BatchSource<decltype(collate(
          std::vector<std::remove_cvref_t<decltype(*next_sample(std::declval<D&>()))>>()))> {
 public:
  using Sample = std::remove_cvref_t<decltype(*next_sample(std::declval<D&>()))>;
  using Batch = decltype(collate(std::vector<Sample>()));
  explicit StreamSource(D dataset) : dataset_(std::move(dataset)) {}
  std::unique_ptr<BatchSource<Batch>> copy() const override { return nullptr; }
  bool is_stream() const override { return true; }
  void restart() override {
    dataset_.reset();
    first_.clear();
    window_.clear();
    begin_ = 0;
    ended_ = false;
  }
  std::uint64_t reach(std::uint64_t until) override {
    while (!ended_ && begin_ + window_.size() < until) {
      if (auto sample = next_sample(dataset_)) {
        window_.push_back(std::move(*sample));
      } else {
        ended_ = true;
      }
    }
    return begin_ + window_.size();
  }
  void forget_before(std::uint64_t position, std::uint64_t keep) override {
    while (begin_ < position) {
      if (window_.empty() && reach(begin_ + 1) == begin_) return;
      if (first_.size() < keep) first_.push_back(window_.front());
      window_.pop_front();
      ++begin_;
    }
  }
  Batch read(const std::vector<std::uint64_t>& samples) override {
    std::vector<Sample> batch;
    for (const std::uint64_t at : samples)
      batch.push_back(at >= begin_ ? window_.at(at - begin_) : first_.at(at));
    return collate(std::move(batch));
  }

 private:
  D dataset_;
  std::vector<Sample> first_;  // of the epoch: they fill up its last step
  std::deque<Sample> window_;  // from position begin_ on
  std::uint64_t begin_ = 0;
  bool ended_ = false;
};

// The order that is computed (data/order.hpp).
class ComputedOrder : public EpochOrder {
 public:
  ComputedOrder(std::uint64_t size, bool shuffle) : size_(size), shuffle_(shuffle) {}
  void set_epoch(std::uint64_t epoch, std::uint64_t seed) override {
    permutation_.reset();
    if (shuffle_ && size_ > 0)
      permutation_.emplace(size_, mix(mix(seed, stream_key(0, "loader")), epoch));
  }
  std::uint64_t sample_at(std::uint64_t position) const override {
    return permutation_ ? (*permutation_)(position) : position;
  }
  std::uint64_t size() const override { return size_; }

 private:
  std::uint64_t size_;
  bool shuffle_;
  std::optional<data::Permutation> permutation_;
};

// Draws a whole epoch from a torch sampler, from random numbers of its own: the same on every rank
// and after a resume.
class SampledOrder : public EpochOrder {
 public:
  using Sampler = torch::data::samplers::Sampler<>;
  // `size`: of the dataset. Throws Config for a sampler that deals to ranks itself.
  SampledOrder(std::shared_ptr<Sampler> sampler, std::uint64_t size);
  void set_epoch(std::uint64_t epoch, std::uint64_t seed) override;
  std::uint64_t sample_at(std::uint64_t position) const override { return order_[position]; }
  std::uint64_t size() const override { return order_.size(); }

 private:
  std::shared_ptr<Sampler> sampler_;
  std::uint64_t dataset_size_;
  std::vector<std::size_t> order_;
};

LoaderOptions options_from(const torch::data::DataLoaderOptions& options);
void check_options(const LoaderOptions& options);

}  // namespace train

// Returns a loader over a dataset; see the top of this file. Throws Config for options that do not
// fit it.
template <class Dataset>
auto make_loader(Dataset dataset, LoaderOptions options) {
  train::check_options(options);
  if constexpr (train::TorchMap<Dataset> || train::UserMap<Dataset>) {
    using Source = train::MapSource<Dataset>;
    using Batch = typename Source::Batch;
    auto source = std::make_unique<Source>(std::move(dataset));
    auto order = std::make_unique<train::ComputedOrder>(source->size(), options.shuffle);
    return Loader<Batch>(
        std::make_shared<train::LoaderCore<Batch>>(std::move(source), std::move(order), options));
  } else {
    static_assert(train::UserStream<Dataset> || train::TorchStream<Dataset>,
                  "a dataset has size() and get(index), or reset() and next(), or is a torch "
                  "dataset");
    if (options.shuffle) {
      throw Error(ErrorKind::kConfig, "shuffle: a stream has one order",
                  "shuffle inside the stream, or leave shuffle out");
    }
    using Source = train::StreamSource<Dataset>;
    using Batch = typename Source::Batch;
    return Loader<Batch>(std::make_shared<train::LoaderCore<Batch>>(
        std::make_unique<Source>(std::move(dataset)), nullptr, options));
  }
}

// With a sampler of torch, which decides the order.
template <class Dataset, class Sampler>
requires std::is_base_of_v<torch::data::samplers::Sampler<>, Sampler>
auto make_loader(Dataset dataset, Sampler sampler, LoaderOptions options) {
  train::check_options(options);
  if (options.shuffle) {
    throw Error(ErrorKind::kConfig, "shuffle and a sampler: both say what the order is",
                "leave shuffle out");
  }
  using Source = train::MapSource<Dataset>;
  using Batch = typename Source::Batch;
  auto source = std::make_unique<Source>(std::move(dataset));
  auto order = std::make_unique<train::SampledOrder>(std::make_shared<Sampler>(std::move(sampler)),
                                                     source->size());
  return Loader<Batch>(
      std::make_shared<train::LoaderCore<Batch>>(std::move(source), std::move(order), options));
}

// As torch::data::make_data_loader<Sampler>(dataset, options).
template <class Sampler, class Dataset>
requires std::is_base_of_v<torch::data::samplers::Sampler<>, Sampler>
auto make_loader(Dataset dataset, const torch::data::DataLoaderOptions& options) {
  const std::size_t size = *dataset.size();
  return make_loader(std::move(dataset), Sampler(size), train::options_from(options));
}

}  // namespace trireme
