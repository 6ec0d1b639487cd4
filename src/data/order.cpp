#include "trireme/data/order.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include <bit>

namespace trireme::data {

namespace {

// Four rounds are indistinguishable from random for large halves; small ones, a few bits wide, need
// more.
constexpr std::uint64_t kRounds = 8;

// The least h with 4^h >= size: two halves of h bits number every index.
int half_bits_for(std::uint64_t size) {
  return (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
}

std::uint64_t checked_size(std::uint64_t size) {
  ensure(size >= 1, "a permutation needs at least one element");
  return size;
}

std::uint64_t feistel(std::uint64_t value, std::uint64_t key, int half_bits) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = left ^ (mix(key + round, right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits | right;
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t key)
    : size_(checked_size(size)), key_(mix(key, size)), half_bits_(half_bits_for(size)) {}

// The network covers less than four times the size, so the walk takes four steps at most on
// average.
std::uint64_t Permutation::operator()(std::uint64_t index) const {
  ensure(index < size_, "index outside the permutation");
  do {
    index = feistel(index, key_, half_bits_);
  } while (index >= size_);
  return index;
}

SampleOrder::SampleOrder(std::uint64_t num_samples, std::uint64_t seed, bool shuffle)
    : SampleOrder(std::span(&num_samples, 1), seed, shuffle) {}

SampleOrder::SampleOrder(std::span<const std::uint64_t> counts, std::uint64_t seed, bool shuffle)
    : sources_(counts), seed_(seed), shuffle_(shuffle) {}

std::uint64_t SampleOrder::sample_at(std::uint64_t position) const {
  const auto [source, index] = sources_.at(position % sources_.size());
  const std::uint64_t begin = sources_.begin(source);
  if (!shuffle_) return begin + index;
  // Sources of one length must not be read in one order; the first is read as it would be alone.
  const std::uint64_t epoch = stream_key(seed_, "epoch") + epoch_of(position);
  const std::uint64_t key = source == 0 ? epoch : mix(epoch, source);
  return begin + Permutation(sources_.count(source), key)(index);
}

std::uint64_t SampleOrder::epoch_of(std::uint64_t position) const {
  return position / sources_.size();
}

}  // namespace trireme::data
