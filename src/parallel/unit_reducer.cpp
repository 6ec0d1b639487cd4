#include "parallel/unit_reducer.hpp"

#include "trireme/parallel/tree_sum.hpp"

#include <algorithm>
#include <utility>

namespace trireme::parallel {

namespace {

constexpr int kTagBase = 1 << 19;  // above the tags of gathers

std::size_t bytes_for(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

void sum_locals(std::span<const float* const> locals, Range range, float* out) {
  std::vector<const float*> shifted(locals.begin(), locals.end());
  for (const float*& local : shifted) local += range.begin;
  tree_sum(shifted, range.size(), out);
}

}  // namespace

UnitReducer::UnitReducer(Fabric& fabric, const Layout& layout, const Team& team, RangeOf range_of,
                         bool narrow)
    : layout_(layout),
      team_(team),
      range_of_(range_of),
      me_(fabric.world().rank()),
      exchange_(fabric.exchange(layout, Lane::kReduce)) {
  // One partial sum from every node of the team, and those that go out.
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (!layout.unit(u).trains) continue;
    std::int64_t needed = (layout.*range_of)(u, me_).size() * team.num_nodes();
    for (const Rank owner : team.remote_owners()) needed += (layout.*range_of)(u, owner).size();
    largest = std::max(largest, needed);
  }
  buffer_ =
      fabric.buffer(Bytes(static_cast<std::int64_t>(bytes_for(largest))), "sums of gradients");
  if (narrow && !team.on_one_node())
    messages_ = SumMessages(fabric, largest, "gradients on their way");
}

void UnitReducer::begin(std::size_t unit, std::span<const float* const> locals) {
  unit_ = unit;
  partials_.clear();
  messages_.restart();
  float* next = buffer_.as<float>().data();
  const auto take = [&next](std::int64_t count) { return std::exchange(next, next + count); };
  const Range range = mine();
  for (int node = 0; node < team_.num_nodes(); ++node) partials_.push_back(take(range.size()));
  sum_locals(locals, range, partials_[static_cast<std::size_t>(team_.my_node())]);
  if (team_.on_one_node()) return;

  std::vector<Outgoing> out;
  for (const Rank owner : team_.remote_owners()) {
    const Range theirs = (layout_.*range_of_)(unit, owner);
    float* const partial = take(theirs.size());
    sum_locals(locals, theirs, partial);
    out.push_back({owner, messages_.outgoing({partial, static_cast<std::size_t>(theirs.size())})});
  }
  std::vector<Incoming> in;
  auto sender = team_.my_stand_ins().begin();
  for (int node = 0; node < team_.num_nodes(); ++node) {
    if (node == team_.my_node()) continue;
    float* const partial = partials_[static_cast<std::size_t>(node)];
    in.push_back(
        {*sender++, messages_.incoming({partial, static_cast<std::size_t>(range.size())})});
  }
  exchange_->begin(unit, kTagBase + tag_++ % kTagBase, std::move(out), std::move(in),
                   [this] { add_nodes(); });
}

void UnitReducer::wait(const std::function<void()>& idle) {
  exchange_->wait("reduce a unit's gradients", idle);
}

// Perhaps in another thread.
void UnitReducer::add_nodes() {
  messages_.unpack();
  const std::vector<const float*> partials(partials_.begin(), partials_.end());
  tree_sum(partials, mine().size(), partials_[0]);
}

std::span<const float> UnitReducer::result() {
  return {partials_[0], static_cast<std::size_t>(mine().size())};
}

}  // namespace trireme::parallel
