// The global order of samples: a permutation per epoch that is computed, never stored, so any
// position is reached in O(1) and no rank count enters it.
#pragma once

#include "trireme/data/interleave.hpp"

#include <cstdint>
#include <span>

namespace trireme::data {

// A keyed bijection of [0, size): a Feistel network over the next even power of two, walked until
// inside (Black & Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). size >= 1.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key);
  std::uint64_t operator()(std::uint64_t index) const;
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

// Maps a position in the endless stream of samples (counted from 0 over all epochs) to a sample of
// the dataset. Samples of several sources take turns in exact proportions (see Interleave); the
// order is random within each source.
class SampleOrder {
 public:
  SampleOrder(std::uint64_t num_samples, std::uint64_t seed, bool shuffle = true);
  // counts: samples of each source, which lie one source behind the other in the dataset.
  SampleOrder(std::span<const std::uint64_t> counts, std::uint64_t seed, bool shuffle = true);
  std::uint64_t sample_at(std::uint64_t position) const;
  std::uint64_t epoch_of(std::uint64_t position) const;

 private:
  Interleave sources_;
  std::uint64_t seed_;
  bool shuffle_;
};

}  // namespace trireme::data
