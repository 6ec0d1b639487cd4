#include "parallel/shard_sums.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/accumulate.hpp"
#include "trireme/parallel/micro_batches.hpp"

#include <algorithm>

namespace trireme::parallel {

namespace {

std::size_t bytes_for(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

}  // namespace

ShardSums::ShardSums(const Layout& layout, Rank me, const std::filesystem::path& /*nvme*/)
    : layout_(layout), me_(me) {
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    offset_.push_back(level_size_);
    level_size_ += size_of(u);
  }
}

std::int64_t ShardSums::size_of(std::size_t unit) const {
  return layout_.unit(unit).trains ? layout_.shard(unit, me_).size() : 0;
}

void ShardSums::restart(std::int64_t turns) {
  const int levels = counter_levels(turns);
  if (levels_.bytes().size() < bytes_for(level_size_ * levels)) {
    levels_ = memory::HostBuffer(Bytes(static_cast<std::int64_t>(bytes_for(level_size_ * levels))),
                                 "gradient shards");
  }
  counters_.clear();
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    std::vector<std::span<float>> spans;
    for (int level = 0; level < levels; ++level) {
      spans.push_back(levels_.as<float>(bytes_for(level_size_ * level + offset_[u]),
                                        static_cast<std::size_t>(size_of(u))));
    }
    counters_.emplace_back(std::move(spans), turns);
  }
}

void ShardSums::add(std::size_t unit, std::span<const float> item) {
  TreeAccumulator& counter = counters_[unit];
  if (counter.adds()) {
    kernels::add(counter.target(), item);
  } else {
    std::copy(item.begin(), item.end(), counter.target().begin());
  }
  counter.advance();
}

std::span<float> ShardSums::total(std::size_t unit) { return counters_[unit].total(); }

void ShardSums::keep_total(std::size_t /*unit*/) {}

}  // namespace trireme::parallel
