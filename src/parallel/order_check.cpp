#include "parallel/order_check.hpp"

#include "trireme/base/error.hpp"
#include "trireme/comm/transfers.hpp"

#include <fmt/format.h>

#include <string>

namespace trireme::parallel {

void throw_other_order(const Layout& layout, std::string_view who, std::size_t theirs,
                       std::size_t mine) {
  const std::string other = theirs < layout.units().size() ? layout.unit(theirs).name : "(none)";
  throw Error(
      ErrorKind::kConfig,
      fmt::format("ranks use the model's units in another order: {} takes '{}' where this "
                  "rank takes '{}'",
                  who, other, layout.unit(mine).name),
      "zero3 needs every rank to use the model's blocks in the same order; use strategy ddp");
}

void require_same_order(comm::Communicator& comm, const Layout& layout, std::size_t unit, int tag,
                        std::span<const int> receivers, std::span<const int> senders,
                        const std::function<void()>& idle) {
  const std::uint64_t mine = unit;
  std::vector<std::uint64_t> theirs(senders.size());
  comm::Transfers transfers(comm);
  for (const int receiver : receivers)
    transfers.send(Rank(receiver), tag, std::as_bytes(std::span(&mine, 1)));
  for (std::size_t i = 0; i < senders.size(); ++i)
    transfers.receive(Rank(senders[i]), tag, std::as_writable_bytes(std::span(&theirs[i], 1)));
  transfers.wait("agree on the order of units", idle);
  for (std::size_t i = 0; i < senders.size(); ++i) {
    if (theirs[i] != mine)
      throw_other_order(layout, fmt::format("rank {}", senders[i]), theirs[i], unit);
  }
}

}  // namespace trireme::parallel
