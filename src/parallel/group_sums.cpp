#include "parallel/group_sums.hpp"

#include "trireme/kernels/accumulate.hpp"
#include "trireme/parallel/micro_batches.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace trireme::parallel {

namespace {

constexpr int kTags = 1 << 19;  // nothing else is under way at a round's end

std::size_t bytes_for(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

}  // namespace

GroupSums::GroupSums(Fabric& fabric, const Layout& layout, bool narrow)
    : fabric_(fabric),
      layout_(layout),
      me_(fabric.world().rank()),
      place_(layout.mesh().place_of(fabric.world().rank())),
      exchange_(fabric.exchange(layout, Lane::kReduce)) {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    offset_.push_back(owned_);
    if (!layout.unit(u).trains) continue;
    owned_ += layout.owned(u, me_).size();
    largest = std::max(largest, layout.owned(u, me_).size());
  }
  partials_ = fabric_.buffer(
      Bytes(static_cast<std::int64_t>(bytes_for(largest * layout.mesh().num_groups()))),
      "sums of groups");
  if (!narrow) return;
  std::int64_t shard = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (layout.unit(u).trains) shard = std::max(shard, layout.shard(u, me_).size());
  }
  // What comes from each other group, and a shard that goes out in parts.
  messages_ = SumMessages(fabric_, largest * layout.mesh().num_groups() + shard,
                          "sums of groups on their way");
}

void GroupSums::restart(std::int64_t num_rounds) {
  rounds_.clear();
  if (num_rounds == 1) return;
  const int levels = counter_levels(num_rounds);
  if (levels_.bytes().size() < bytes_for(owned_ * levels)) {
    levels_ = fabric_.buffer(Bytes(static_cast<std::int64_t>(bytes_for(owned_ * levels))),
                             "sums of rounds");
  }
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const auto size =
        static_cast<std::size_t>(layout_.unit(u).trains ? layout_.owned(u, me_).size() : 0);
    std::vector<std::span<float>> spans;
    for (int level = 0; level < levels; ++level)
      spans.push_back(levels_.as<float>(bytes_for(owned_ * level + offset_[u]), size));
    rounds_.emplace_back(std::move(spans), num_rounds);
  }
}

std::span<float> GroupSums::part_in(std::span<float> shard, std::size_t unit, Rank owner) const {
  const Range part = layout_.owned(unit, owner);
  return shard.subspan(static_cast<std::size_t>(part.begin - layout_.shard(unit, me_).begin),
                       static_cast<std::size_t>(part.size()));
}

void GroupSums::add_round(ShardSums& sums, bool last, const std::function<void()>& idle) {
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (!layout_.unit(u).trains) continue;
    const std::span<float> shard = sums.total(u);
    std::span<const float> sum = add_groups(u, shard, idle);
    if (!rounds_.empty()) {
      TreeAccumulator& counter = rounds_[u];
      if (counter.adds()) {
        kernels::add(counter.target(), sum);
      } else {
        std::copy(sum.begin(), sum.end(), counter.target().begin());
      }
      counter.advance();
      if (last) sum = counter.total();
    }
    if (!last) continue;
    std::copy(sum.begin(), sum.end(), part_in(shard, u, me_).begin());
    give_total(u, shard, idle);
    sums.keep_total();
  }
}

void GroupSums::finish(ShardSums& sums, const std::function<void()>& idle) {
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (!layout_.unit(u).trains || rounds_.empty() || rounds_[u].complete()) continue;
    rounds_[u].finish();
    const std::span<float> shard = sums.total(u);
    const std::span<const float> sum = rounds_[u].total();
    std::copy(sum.begin(), sum.end(), part_in(shard, u, me_).begin());
    give_total(u, shard, idle);
    sums.keep_total();
  }
}

// Returns the sum of this rank's part over the groups.
std::span<float> GroupSums::add_groups(std::size_t unit, std::span<float> shard,
                                       const std::function<void()>& idle) {
  const auto own = part_in(shard, unit, me_);
  const int my_group = layout_.mesh().group_of(me_);
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  std::vector<const float*> partials;
  float* next = partials_.as<float>().data();
  float* const result = next;
  messages_.restart();
  for (int group = 0; group < layout_.mesh().num_groups(); ++group) {
    const std::span<float> partial(next, own.size());
    next += own.size();
    partials.push_back(partial.data());
    if (group == my_group) {
      std::copy(own.begin(), own.end(), partial.begin());
      continue;
    }
    out.push_back({replica(group), messages_.outgoing(part_in(shard, unit, replica(group)))});
    in.push_back({replica(group), messages_.incoming(partial)});
  }
  exchange_->begin(unit, tag_++ % kTags, std::move(out), std::move(in));
  exchange_->wait("add the shards of replicas", idle);
  messages_.unpack();
  tree_sum(partials, static_cast<std::int64_t>(own.size()), result);
  return {result, own.size()};
}

void GroupSums::give_total(std::size_t unit, std::span<float> shard,
                           const std::function<void()>& idle) {
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int group = 0; group < layout_.mesh().num_groups(); ++group) {
    if (replica(group) == me_) continue;
    out.push_back({replica(group), std::as_bytes(part_in(shard, unit, me_))});
    in.push_back({replica(group), std::as_writable_bytes(part_in(shard, unit, replica(group)))});
  }
  exchange_->begin(unit, tag_++ % kTags, std::move(out), std::move(in));
  exchange_->wait("give sums to replicas", idle);
}

}  // namespace trireme::parallel
