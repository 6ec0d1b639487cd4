// One unit's data on its way to other ranks. Ranks must take units in the same order, or they would
// exchange one unit's bytes for another's: so each message is led by the unit's number, and data is
// received only after the numbers agree. Private to the room.
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/parallel/layout.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace trireme::parallel {

// Throws Config: `who` takes `theirs` where this rank takes `mine`.
[[noreturn]] void throw_other_order(const Layout& layout, std::string_view who, std::size_t theirs,
                                    std::size_t mine);

struct Outgoing {
  Rank to;
  std::span<const std::byte> bytes;
};
struct Incoming {
  Rank from;
  std::span<std::byte> bytes;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // At most one message to and from each rank; one to this rank itself is a copy, made when data is
  // received. All memory stays in place until the exchange has ended. Exchanges between two ranks
  // begin in the same order on both; `tag` keeps those that overlap apart. `then`, if given, is
  // called once when the data is there, perhaps in another thread, and the exchange ends with it.
  virtual void begin(std::size_t unit, int tag, std::vector<Outgoing> out, std::vector<Incoming> in,
                     std::function<void()> then = {}) = 0;
  // Moves on without waiting; returns whether it has ended. Throws Config naming a rank that is at
  // another unit.
  virtual bool done() = 0;
  // `idle` may call done() of this exchange, which then does nothing.
  virtual void wait(std::string_view what, const std::function<void()>& idle) = 0;
};

}  // namespace trireme::parallel
