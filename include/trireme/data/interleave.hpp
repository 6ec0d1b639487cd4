// A mixture in exact proportions: of any stretch of an epoch every source has its share, to within
// one sample per level of a binary tree over the sources, and of the whole epoch exactly its count.
// Nothing is drawn, so any position is reached in O(log sources) and a resumed run goes on with
// the same proportions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

class Interleave {
 public:
  struct Place {
    std::size_t source;
    std::uint64_t index;  // among the source's samples, counted up
  };

  // counts[s] samples of source s; their sum is at least 1.
  explicit Interleave(std::span<const std::uint64_t> counts);

  std::uint64_t size() const { return ends_.back(); }
  std::size_t num_sources() const { return ends_.size() - 1; }
  std::uint64_t begin(std::size_t source) const { return ends_[source]; }
  std::uint64_t count(std::size_t source) const { return ends_[source + 1] - ends_[source]; }

  // Where position `at` < size() comes from.
  Place at(std::uint64_t at) const;

 private:
  std::vector<std::uint64_t> ends_;  // ends_[s] = samples of the sources in front of s
};

}  // namespace trireme::data
