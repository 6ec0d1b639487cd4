// The weights that the network computes with. Inside a node they exist once, in memory that its
// ranks share.
//
// Resident: the whole model stays in the node's window (ddp, and zero3 on one node). Gathered
// (zero3 on several nodes): the window holds a few units; a unit is gathered when an operator first
// touches it and evicts the one touched longest ago. Every rank makes the same touches in the same
// order, so no message about it is needed.
#pragma once

#include "trireme/comm/session.hpp"
#include "trireme/memory/host_buffer.hpp"
#include "trireme/parallel/dispatch.hpp"
#include "trireme/parallel/layout.hpp"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace trireme::parallel {

// Which local rank of a node stands for rank `owner` there: the owner itself on its own node, else
// one of equal place.
int stand_in(const comm::Topology& topology, int node, Rank owner);
// Returns the ranks that stand for `owner` on the other nodes, node by node.
std::vector<int> stand_ins_of(const comm::Topology& topology, Rank owner);
// Returns the ranks of other nodes that a local rank of this node stands in for.
std::vector<int> stands_in_for(const comm::Topology& topology, int local_rank);

class Weights : public OperatorObserver {
 public:
  // Units that a node keeps present at once when it gathers: the one in use, and two around it.
  static constexpr int kPresentUnits = 3;

  // @collective.
  Weights(comm::Session& session, const Layout& layout, const Strategy& strategy,
          at::ScalarType compute);
  ~Weights() override;

  bool resident() const { return !gathers_; }
  at::ScalarType compute() const { return compute_; }

  // Points the parameters' storage here, and changes their type to the compute type. By unit, in
  // slot order.
  void attach(std::size_t unit, std::vector<at::Tensor> parameters);

  // Returns where this rank writes its part of a unit's new weights, for element `offset` of the
  // unit; null when another rank of the node writes it.
  std::byte* target(std::size_t unit, std::int64_t offset) const;
  // @collective. Makes what all ranks wrote visible to all: the end of an update.
  void publish();

  // What to do while a gather waits: work that other ranks may need before they can join it. Ranks
  // reach gathers and reductions in one order, but each reduction later by its own luck; without
  // this they could wait in a circle.
  void set_idle(std::function<void()> idle) { idle_ = std::move(idle); }

  // Sees the operators of forward and backward, to gather what they read. Needed only while not
  // resident.
  bool on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;

  // Bytes of this rank: its share of the node's window, and its shard where it keeps one.
  Bytes share_of_window() const;
  Bytes shard() const { return Bytes(static_cast<std::int64_t>(shard_.bytes().size())); }

 private:
  struct Gathering;

  std::byte* window_at(std::int64_t element) const;
  std::atomic<std::uint64_t>& unit_in_gather(int local) const;
  void gather(std::size_t unit, std::span<const std::size_t> needed);
  void fill_slot(std::size_t unit, std::int64_t base);
  std::size_t element_size() const { return compute_ == at::kBFloat16 ? 2 : 4; }

  comm::Session& session_;
  const Layout& layout_;
  at::ScalarType compute_;
  bool gathers_;
  std::function<void()> idle_;
  std::vector<std::int64_t> unit_offset_;  // resident: element offset of each unit in the window
  std::vector<std::int64_t>
      shard_offset_;  // gathered: element offset of this rank's part of each unit in shard_
  std::unique_ptr<comm::SharedSegments> window_;
  std::unique_ptr<comm::SharedSegments> control_;  // gathered: which unit each local rank is at
  std::vector<int> remote_owners_;  // ranks of other nodes whose shards this rank receives
  memory::HostBuffer shard_;
  std::unique_ptr<Gathering> gathering_;
};

}  // namespace trireme::parallel
