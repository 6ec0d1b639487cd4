// The weights that the network computes with. Inside a node they exist once, in memory that its
// ranks share.
//
// Resident: the whole model stays in the node's window (ddp, zero1, zero2; zero3 and hsdp while a
// group of ranks that shards the weights lies on one node). Gathered: the window holds a few units,
// which come and go as operators touch them.
#pragma once

#include "trireme/memory/tier_file.hpp"
#include "trireme/parallel/disk.hpp"
#include "trireme/parallel/dispatch.hpp"
#include "trireme/parallel/layout.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::parallel {

class Fabric;

struct WeightOptions {
  at::ScalarType compute = at::kBFloat16;  // kBFloat16, kHalf or kFloat
  bool keep_gathered = false;  // units stay present until the next update: one gather a step
  DiskOptions disk;            // for shards
};

// Whose touches are alike: the order is remembered by pass.
enum class Pass { kTraining, kEvaluation };

class Weights : public OperatorObserver {
 public:
  Weights(const Layout& layout, at::ScalarType compute) : layout_(layout), compute_(compute) {}

  // Whether nothing needs to be seen of the operators that run.
  virtual bool resident() const = 0;
  // The type that a unit's weights have.
  at::ScalarType type_of(std::size_t unit) const {
    return layout_.unit(unit).keeps_fp32 ? at::kFloat : compute_;
  }

  // Points the parameters' storage here, and changes their type. By unit, in slot order.
  virtual void attach(std::size_t unit, std::vector<at::Tensor> parameters) = 0;

  // Returns where this rank writes its part of a unit's new weights, for element `offset` of the
  // unit; null when another rank of the node writes it. Parts (Layout::part) are contiguous there.
  virtual std::byte* target(std::size_t unit, std::int64_t offset) = 0;
  // @collective. Makes what all ranks wrote visible to all: the end of an update. `frozen_too`:
  // units that do not train were written as well.
  virtual void publish(bool frozen_too) = 0;

  // Before a forward, or forward and backward, whose operators are seen by on_operator().
  virtual void begin_pass(Pass /*pass*/) {}
  bool on_operator(const c10::OperatorHandle& /*op*/, torch::jit::Stack& /*stack*/) override {
    return false;
  }
  // Lets gathers move on, without waiting.
  virtual void progress() {}
  // What to call while waiting: work that other ranks may need before they can join.
  void set_idle(std::function<void()> idle) { idle_ = std::move(idle); }

  struct Times {
    double under_way = 0;  // seconds that gathers were under way
    double waited = 0;     // seconds of those that operators waited for
  };
  // Since the last call.
  virtual Times take_times() { return {}; }
  // What a user should know, once: why gathers wait for operators.
  virtual std::string take_note() { return {}; }

  // Of this rank: its share of a resident window or its shard; on disk; its share of the present
  // units.
  virtual Bytes held_bytes() const = 0;
  virtual Bytes disk_bytes() const { return Bytes(0); }
  // Of transfers to and from disk, since the last call.
  virtual memory::TierStats take_tier_stats() { return {}; }
  virtual Bytes transient_bytes() const { return Bytes(0); }

 protected:
  std::size_t element_size(std::size_t unit) const { return c10::elementSize(type_of(unit)); }
  // Bytes of `elements` of a unit, from its start.
  std::size_t bytes(std::size_t unit, std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_size(unit);
  }
  // A tensor of `parameter`'s shape over memory of this room.
  at::Tensor view_of(std::size_t unit, std::byte* data, const at::Tensor& parameter) const;

  const Layout& layout_;
  at::ScalarType compute_;
  std::function<void()> idle_;
};

// @collective.
std::unique_ptr<Weights> make_weights(Fabric& fabric, const Layout& layout,
                                      const Strategy& strategy, const WeightOptions& options);

}  // namespace trireme::parallel
