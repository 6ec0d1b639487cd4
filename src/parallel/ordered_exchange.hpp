// An exchange between nodes by messages. Nothing here waits unless asked to. Private to the room.
#pragma once

#include "trireme/comm/transfers.hpp"

#include "parallel/exchange.hpp"

#include <cstdint>
#include <optional>

namespace trireme::parallel {

class OrderedExchange : public Exchange {
 public:
  OrderedExchange(comm::Communicator& comm, const Layout& layout) : comm_(comm), layout_(layout) {}

  // Sends at once.
  void begin(std::size_t unit, int tag, std::vector<Outgoing> out, std::vector<Incoming> in,
             std::function<void()> then = {}) override;
  bool done() override;
  void wait(std::string_view what, const std::function<void()>& idle) override;

 private:
  void receive_data();
  void end();

  comm::Communicator& comm_;
  const Layout& layout_;
  std::uint64_t unit_ = 0;
  int tag_ = 0;
  bool waiting_ = false;
  std::vector<Incoming> in_;
  std::vector<std::uint64_t> theirs_;  // unit numbers of the senders
  std::span<const std::byte> own_;     // what this rank sends to itself,
  std::span<std::byte> into_;          // and where to
  std::function<void()> then_;
  std::optional<comm::Transfers> heads_;
  std::optional<comm::Transfers> data_;
};

}  // namespace trireme::parallel
