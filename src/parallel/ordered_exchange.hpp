// One unit's data on its way between nodes. Ranks must take units in the same order, or they would
// exchange one unit's bytes for another's: so each message is led by the unit's number, and data is
// received only after the numbers agree. Nothing here waits unless asked to. Private to the room.
#pragma once

#include "trireme/comm/transfers.hpp"
#include "trireme/parallel/layout.hpp"

#include <functional>
#include <optional>
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

class OrderedExchange {
 public:
  OrderedExchange(comm::Communicator& comm, const Layout& layout) : comm_(comm), layout_(layout) {}

  // Sends at once. All memory stays in place until the exchange has ended. Exchanges between two
  // ranks begin in the same order on both; `tag` keeps those that overlap apart.
  void begin(std::size_t unit, int tag, std::span<const Outgoing> out, std::vector<Incoming> in);
  // Moves on without waiting; returns whether it has ended. Throws Config naming a rank that is at
  // another unit.
  bool done();
  // `idle` may call done() of this exchange, which then does nothing.
  void wait(std::string_view what, const std::function<void()>& idle);

 private:
  void receive_data();

  comm::Communicator& comm_;
  const Layout& layout_;
  std::uint64_t unit_ = 0;
  int tag_ = 0;
  bool waiting_ = false;
  std::vector<Incoming> in_;
  std::vector<std::uint64_t> theirs_;  // unit numbers of the senders
  std::optional<comm::Transfers> heads_;
  std::optional<comm::Transfers> data_;
};

}  // namespace trireme::parallel
