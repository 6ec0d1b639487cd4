// Master weights and moments of what this rank holds of every unit. Private to the room.
#pragma once

#include "trireme/memory/host_buffer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/layout.hpp"

#include <functional>
#include <span>
#include <vector>

namespace trireme::parallel {

// A run of one unit's state, inside one part (Layout::part).
struct StateChunk {
  std::size_t unit = 0;
  Range range;  // in the unit
  std::span<float> master;
  Moments moments{};  // null in units that do not train
};

class StateStore {
 public:
  StateStore(const Layout& layout, Rank me, int num_moments, at::ScalarType moments);

  // The part of a unit that this rank holds.
  Range held(std::size_t unit) const { return layout_.shard(unit, me_); }
  // Calls `visit` for everything that is held, in unit order.
  void for_each(const std::function<void(const StateChunk&)>& visit);
  // Returns one piece of a unit's state.
  StateChunk at(std::size_t unit, Range range) const;

  Bytes master_bytes() const { return size_of(master_); }
  Bytes moment_bytes() const;

 private:
  static Bytes size_of(const memory::HostBuffer& buffer) {
    return Bytes(static_cast<std::int64_t>(buffer.bytes().size()));
  }
  std::size_t moment_size() const { return c10::elementSize(type_); }

  const Layout& layout_;
  Rank me_;
  at::ScalarType type_;
  std::vector<std::int64_t> master_at_;  // by unit, in elements
  std::vector<std::int64_t> moments_at_;
  memory::HostBuffer master_;
  std::vector<memory::HostBuffer> moments_;
};

}  // namespace trireme::parallel
