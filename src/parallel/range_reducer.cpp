#include "trireme/base/error.hpp"
#include "trireme/parallel/gradients.hpp"
#include "trireme/parallel/weights.hpp"

#include "parallel/order_check.hpp"
#include <fmt/format.h>

#include <algorithm>

namespace trireme::parallel {

namespace {

constexpr int kTagBase = 1 << 19;  // above the tags of gathers

std::span<const std::byte> bytes_of(const float* data, Range range) {
  return {reinterpret_cast<const std::byte*>(data),
          static_cast<std::size_t>(range.size()) * sizeof(float)};
}

std::span<std::byte> writable_bytes_of(float* data, Range range) {
  return {reinterpret_cast<std::byte*>(data),
          static_cast<std::size_t>(range.size()) * sizeof(float)};
}

}  // namespace

RangeReducer::RangeReducer(comm::Session& session, const Layout& layout)
    : session_(session), layout_(layout) {
  // Own sum, one partial from every node, and the partials that go out.
  std::int64_t largest = 0;
  remote_owners_ = stands_in_for(session.topology(), session.node().local_rank());
  stand_ins_ = stand_ins_of(session.topology(), session.world().rank());
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const std::int64_t own = layout.shard(u, session.world().rank()).size();
    std::int64_t needed = own;
    if (session.topology().num_nodes > 1) needed += own * session.topology().num_nodes;
    for (const int owner : remote_owners_) needed += layout.shard(u, Rank(owner)).size();
    largest = std::max(largest, needed);
  }
  buffer_ = memory::HostBuffer(Bytes(largest * static_cast<std::int64_t>(sizeof(float))),
                               "sums of gradients");
}

void RangeReducer::sum_locals(std::span<const float* const> locals, Range range, float* out) const {
  std::vector<const float*> shifted(locals.begin(), locals.end());
  for (const float*& local : shifted) local += range.begin;
  tree_sum(shifted, range.size(), out);
}

std::span<const float> RangeReducer::reduce(std::size_t unit,
                                            std::span<const float* const> locals) {
  if (session_.topology().num_nodes > 1) return across_nodes(unit, locals);
  const Range mine = layout_.shard(unit, session_.world().rank());
  float* out = buffer_.as<float>().data();
  sum_locals(locals, mine, out);
  return {out, static_cast<std::size_t>(mine.size())};
}

std::span<const float> RangeReducer::across_nodes(std::size_t unit,
                                                  std::span<const float* const> locals) {
  const comm::Topology& topology = session_.topology();
  const Range mine = layout_.shard(unit, session_.world().rank());
  float* next = buffer_.as<float>().data();
  const auto take = [&next](std::int64_t count) { return std::exchange(next, next + count); };

  const int tag = kTagBase + tag_++ % kTagBase;
  require_same_order(session_.world(), layout_, unit, tag, remote_owners_, stand_ins_);
  comm::Transfers transfers(session_.world());
  float* const out = take(mine.size());
  std::vector<const float*> partials;
  auto sender = stand_ins_.begin();
  for (int node = 0; node < topology.num_nodes; ++node) {
    float* const partial = take(mine.size());
    partials.push_back(partial);
    if (node == topology.node) {
      sum_locals(locals, mine, partial);
    } else {
      transfers.receive(Rank(*sender++), tag, writable_bytes_of(partial, mine));
    }
  }
  for (const int owner : remote_owners_) {
    const Range theirs = layout_.shard(unit, Rank(owner));
    float* const partial = take(theirs.size());
    sum_locals(locals, theirs, partial);
    transfers.send(Rank(owner), tag, bytes_of(partial, theirs));
  }
  transfers.wait("reduce a unit's gradients");
  tree_sum(partials, mine.size(), out);
  return {out, static_cast<std::size_t>(mine.size())};
}

}  // namespace trireme::parallel
