#include "trireme/comm/device_group.hpp"

#include "trireme/base/error.hpp"

#include "communicator_impl.hpp"
#include "wait.hpp"

#include <algorithm>
#include <chrono>

namespace trireme::comm {

namespace {

// Beyond the group's own deadline, which names the late ones.
constexpr std::chrono::duration<double> kMargin{30};

}  // namespace

DeviceGroup::~DeviceGroup() = default;

// So that a rank which has not come to an operation is told from those that have.
void DeviceGroup::enter() { comm_.impl_->enter(); }

void DeviceGroup::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                             DeviceStream& stream) {
  ensure(all.size() == mine.size() * ranks(), "all_gather fits its destination");
  enter();
  do_all_gather(mine, all, stream);
}

void DeviceGroup::exchange(std::span<const std::span<const std::byte>> sends,
                           std::span<const std::span<std::byte>> receives, DeviceStream& stream) {
  ensure(sends.size() == ranks() && receives.size() == ranks(), "exchange is with every rank");
  const auto me = static_cast<std::size_t>(rank().value);
  ensure(sends[me].size() == receives[me].size(), "what a rank keeps has one size");
  enter();
  do_exchange(sends, receives, stream);
}

void DeviceGroup::broadcast(std::span<std::byte> bytes, Rank root, DeviceStream& stream) {
  ensure(root.value >= 0 && root.value < size(), "the root of a broadcast is a rank of the group");
  enter();
  do_broadcast(bytes, root, stream);
}

void DeviceGroup::poll(std::string_view what, const std::function<bool()>& ended) {
  NodeGroup::Impl& node = *comm_.impl_->node_impl;
  Wait waiting(*comm_.impl_->node, node, comm_.timeout(), what);
  while (!ended()) waiting.turn([&] { return node.behind_in_collectives(); });
}

void DeviceGroup::wait(DeviceStream& stream, std::string_view what,
                       const std::function<void()>& idle) {
  try {
    NodeGroup::Impl& node = *comm_.impl_->node_impl;
    Wait waiting(*comm_.impl_->node, node, comm_.timeout(), what);
    stream.wait(what, Deadline::after(comm_.timeout() + kMargin), [&] {
      progress();
      if (idle) idle();
      waiting.turn([&] { return node.behind_in_collectives(); });
    });
    progress();
  } catch (...) {
    give_up();
    throw;
  }
}

}  // namespace trireme::comm
