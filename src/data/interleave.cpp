#include "trireme/data/interleave.hpp"

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// Of the first `position` places at a fork, how many go to the side that gets `part` of `whole`.
std::uint64_t share(std::uint64_t position, std::uint64_t part, std::uint64_t whole) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(position) * part / whole);
}

}  // namespace

Interleave::Interleave(std::span<const std::uint64_t> counts) : ends_{0} {
  for (const std::uint64_t count : counts) ends_.push_back(ends_.back() + count);
  ensure(size() >= 1, "a mixture has at least one sample");
}

Interleave::Place Interleave::at(std::uint64_t position) const {
  ensure(position < size(), "position outside the mixture");
  std::size_t low = 0;
  std::size_t high = num_sources();
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    const std::uint64_t left = ends_[middle] - ends_[low];
    const std::uint64_t whole = ends_[high] - ends_[low];
    const std::uint64_t before = share(position, left, whole);
    if (share(position + 1, left, whole) > before) {
      position = before;
      high = middle;
    } else {
      position -= before;
      low = middle;
    }
  }
  return {low, position};
}

}  // namespace trireme::data
