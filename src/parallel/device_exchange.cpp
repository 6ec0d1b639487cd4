#include "parallel/device_exchange.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <utility>

namespace trireme::parallel {

namespace {

constexpr std::chrono::seconds kPatience{10};

template <class Messages, class Spans>
void put_by_rank(const Messages& messages, Rank(Messages::value_type::*peer), Spans& spans) {
  for (const auto& message : messages) {
    auto& place = spans[static_cast<std::size_t>((message.*peer).value)];
    ensure(place.empty(), "an exchange has one message for a rank");
    place = message.bytes;
  }
}

}  // namespace

// The numbers of the units that this rank and the others are at, on the host and on the device.
struct DeviceExchange::Heads {
  memory::PinnedBuffer mine_here;
  memory::PinnedBuffer theirs_here;
  memory::DeviceBuffer mine;
  memory::DeviceBuffer theirs;

  std::span<std::uint64_t> values(const memory::PinnedBuffer& buffer, std::size_t count) const {
    return buffer.memory.as<std::uint64_t>(0, count);
  }
};

DeviceExchange::DeviceExchange(memory::Device& device, DeviceLane& lane, const Layout& layout)
    : device_(device), lane_(lane), layout_(layout), heads_(std::make_shared<Heads>()) {
  constexpr Bytes kOne(sizeof(std::uint64_t));
  const Bytes all(kOne.value * lane.group->size());
  heads_->mine_here = device.pinned(kOne, "unit numbers");
  heads_->theirs_here = device.pinned(all, "unit numbers");
  heads_->mine = device.allocate(kOne, "unit numbers", lane.stream);
  heads_->theirs = device.allocate(all, "unit numbers", lane.stream);
}

DeviceExchange::~DeviceExchange() {
  if (!end_ || end_->reached()) return;
  lane_.group->give_up();
  try {
    lane_.stream->wait("the end of an exchange", Deadline::after(kPatience));
  } catch (...) {  // it has been given up
  }
}

void DeviceExchange::exchange_heads(std::size_t unit, const std::vector<Outgoing>& out,
                                    const std::vector<Incoming>& in) {
  const auto ranks = static_cast<std::size_t>(lane_.group->size());
  const Rank me = lane_.group->rank();
  DeviceStream& stream = *lane_.stream;
  const auto mine_here = heads_->values(heads_->mine_here, 1);
  const auto theirs_here = heads_->values(heads_->theirs_here, ranks);
  mine_here[0] = unit;
  device_.copy(heads_->mine.bytes(), std::as_bytes(mine_here), stream);
  std::vector<std::span<const std::byte>> sends(ranks);
  std::vector<std::span<std::byte>> receives(ranks);
  for (const Outgoing& message : out) {
    if (message.to != me) sends[static_cast<std::size_t>(message.to.value)] = heads_->mine.bytes();
  }
  std::vector<std::size_t> senders;
  for (const Incoming& message : in) {
    if (message.from == me) continue;
    const auto rank = static_cast<std::size_t>(message.from.value);
    receives[rank] =
        heads_->theirs.bytes().subspan(rank * sizeof(std::uint64_t), sizeof(std::uint64_t));
    senders.push_back(rank);
  }
  if (senders.empty() && out.size() <= 1) return;  // nobody else
  lane_.group->exchange(sends, receives, stream);
  device_.copy(std::as_writable_bytes(theirs_here), heads_->theirs.bytes(), stream);
  stream.run([heads = heads_, layout = &layout_, theirs_here, senders = std::move(senders), unit] {
    for (const std::size_t rank : senders) {
      if (theirs_here[rank] != unit)
        throw_other_order(*layout, fmt::format("rank {}", rank), theirs_here[rank], unit);
    }
  });
}

void DeviceExchange::begin(std::size_t unit, int /*tag*/, std::vector<Outgoing> out,
                           std::vector<Incoming> in, std::function<void()> then) {
  ensure(!end_, "an exchange begins when the one before has ended");
  // As on a GPU, which reaches nothing else.
  for (const Outgoing& message : out)
    ensure(message.bytes.empty() || device_.owns(message.bytes), "a message is on the device");
  for (const Incoming& message : in)
    ensure(message.bytes.empty() || device_.owns(message.bytes), "a message is on the device");
  exchange_heads(unit, out, in);
  const auto ranks = static_cast<std::size_t>(lane_.group->size());
  std::vector<std::span<const std::byte>> sends(ranks);
  std::vector<std::span<std::byte>> receives(ranks);
  put_by_rank(out, &Outgoing::to, sends);
  put_by_rank(in, &Incoming::from, receives);
  lane_.group->exchange(sends, receives, *lane_.stream);
  if (then) lane_.stream->run(std::move(then));
  end_ = lane_.stream->record();
}

bool DeviceExchange::done() {
  if (waiting_) return false;
  if (!end_) return true;
  lane_.group->progress();
  end_->push();
  if (!end_->reached()) return false;
  end_.reset();
  return true;
}

void DeviceExchange::wait(std::string_view what, const std::function<void()>& idle) {
  if (!end_) return;
  waiting_ = true;
  lane_.group->wait(*lane_.stream, what, idle);
  waiting_ = false;
  end_.reset();
}

}  // namespace trireme::parallel
