// Ranks that exchange memory of their devices. Operations are queued on a stream and return at
// once; nothing is added up on the way, so that sums keep the one order of addition that the
// engine prescribes: reduce-scatter is an exchange and additions by the receiver. Two
// implementations: NCCL, and host memory over MPI.
#pragma once

#include "trireme/base/device_stream.hpp"
#include "trireme/base/units.hpp"
#include "trireme/comm/communicator.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::comm {

// Every rank calls the same operations in the same order, and each operation begins after the one
// before, whatever their streams: work that shall overlap takes groups of its own. Memory stays in
// place until the stream has passed.
class DeviceGroup {
 public:
  virtual ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  Rank rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  // "NCCL 2.28.9" or "host"
  virtual std::string describe() const = 0;

  // @collective. Rank r's `mine` arrives at r * mine.size() of `all`; `mine` may be its own place
  // in `all`.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, DeviceStream& stream);
  // sends[r] goes to rank r, receives[r] comes from there, this rank included; sizes may differ and
  // be 0, and agree on both sides. A collective of those that exchange something.
  void exchange(std::span<const std::span<const std::byte>> sends,
                std::span<const std::span<std::byte>> receives, DeviceStream& stream);
  // @collective. Root's bytes arrive on every rank.
  void broadcast(std::span<std::byte> bytes, Rank root, DeviceStream& stream);

  // Waits for what is queued on a stream with operations of this group, and moves them on. Throws
  // Timeout or PeerLost naming the ranks that did not come, or Device; the group is aborted then.
  // `idle`, if given, is called while waiting: progress() of other groups belongs there.
  void wait(DeviceStream& stream, std::string_view what, const std::function<void()>& idle = {});
  // Lets operations move on without waiting, where they need it. Throws what has gone wrong behind
  // the caller's back.
  virtual void progress() = 0;
  // Ends what is under way, so that nobody waits for it any more. Nothing works afterwards.
  virtual void give_up() noexcept = 0;

 protected:
  explicit DeviceGroup(Communicator comm) : comm_(std::move(comm)) {}
  Communicator& comm() { return comm_; }
  // Waits for other ranks with the communicator's deadline. Throws Timeout or PeerLost naming those
  // that did not come.
  void poll(std::string_view what, const std::function<bool()>& ended);
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

 private:
  virtual void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                             DeviceStream& stream) = 0;
  virtual void do_exchange(std::span<const std::span<const std::byte>> sends,
                           std::span<const std::span<std::byte>> receives,
                           DeviceStream& stream) = 0;
  virtual void do_broadcast(std::span<std::byte> bytes, Rank root, DeviceStream& stream) = 0;
  void enter();

  Communicator comm_;
};

// @collective. Each rank has a GPU of its own, `device_index` among those that it may see. Throws
// the same error on every rank: Environment where NCCL or a GPU is missing or versions of NCCL
// differ, Timeout naming the ranks that did not come within the communicator's deadline.
std::unique_ptr<DeviceGroup> make_gpu_group(Communicator& comm, int device_index);

// @collective. For streams of the host device. Its operations move while a rank waits by wait() or
// calls progress().
std::unique_ptr<DeviceGroup> make_host_group(Communicator& comm);

}  // namespace trireme::comm
