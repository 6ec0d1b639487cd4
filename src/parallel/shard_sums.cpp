#include "parallel/shard_sums.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/accumulate.hpp"
#include "trireme/parallel/micro_batches.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::parallel {

namespace {

std::size_t bytes_for(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

}  // namespace

ShardSums::ShardSums(Fabric& fabric, const Layout& layout, std::int64_t turns,
                     const DiskOptions& disk)
    : fabric_(fabric), layout_(layout), me_(fabric.world().rank()) {
  const bool on_disk = !disk.folder.empty();
  std::vector<std::size_t> sizes;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    offset_.push_back(on_disk ? 0 : level_size_);
    level_size_ = on_disk ? std::max(level_size_, size_of_unit(u)) : level_size_ + size_of_unit(u);
    sizes.push_back(bytes_for(size_of_unit(u) * counter_levels(turns)));
  }
  if (on_disk) {
    file_ = std::make_unique<UnitFile>(disk, fmt::format("gradients of rank {}", me_.value),
                                       std::move(sizes));
  }
}

std::int64_t ShardSums::size_of_unit(std::size_t unit) const {
  return layout_.unit(unit).trains ? layout_.shard(unit, me_).size() : 0;
}

void ShardSums::restart(std::int64_t turns) {
  num_levels_ = counter_levels(turns);
  if (levels_.bytes().size() < bytes_for(level_size_ * num_levels_)) {
    levels_ = fabric_.buffer(Bytes(static_cast<std::int64_t>(bytes_for(level_size_ * num_levels_))),
                             "gradient shards");
  }
  counters_.clear();
  begun_.assign(layout_.units().size(), false);
  at_hand_.reset();
  changed_ = false;
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    // On disk a unit's levels follow each other at the buffer's begin.
    const std::int64_t stride = file_ ? size_of_unit(u) : level_size_;
    std::vector<std::span<float>> spans;
    for (int level = 0; level < num_levels_; ++level) {
      spans.push_back(levels_.as<float>(bytes_for(stride * level + offset_[u]),
                                        static_cast<std::size_t>(size_of_unit(u))));
    }
    counters_.emplace_back(std::move(spans), turns);
  }
}

std::span<std::byte> ShardSums::bytes_at_hand(std::size_t unit) const {
  return levels_.bytes().first(bytes_for(size_of_unit(unit) * num_levels_));
}

void ShardSums::put_back() {
  if (at_hand_ && changed_) file_->write(*at_hand_, bytes_at_hand(*at_hand_));
  changed_ = false;
}

void ShardSums::bring_in(std::size_t unit) {
  if (!file_ || at_hand_ == unit) return;
  put_back();
  at_hand_.reset();
  if (begun_[unit]) file_->read(unit, bytes_at_hand(unit));
  at_hand_ = unit;
}

void ShardSums::add(std::size_t unit, std::span<const float> item) {
  bring_in(unit);
  TreeAccumulator& counter = counters_[unit];
  if (counter.adds()) {
    kernels::add(counter.target(), item);
  } else {
    std::copy(item.begin(), item.end(), counter.target().begin());
  }
  counter.advance();
  begun_[unit] = true;
  changed_ = true;
}

std::span<float> ShardSums::total(std::size_t unit) {
  bring_in(unit);
  TreeAccumulator& counter = counters_[unit];
  if (!begun_[unit]) {  // this group had no turn
    std::ranges::fill(counter.total(), 0.0F);
    begun_[unit] = true;
    changed_ = true;
  } else if (counter.begun() && counter.finish()) {
    changed_ = true;
  }
  return counter.total();
}

}  // namespace trireme::parallel
