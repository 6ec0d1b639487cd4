// Work queued on a device, in order, as every room may see it: rooms that move bytes between ranks
// stand above the one that owns devices, and no header of the project has a type of CUDA.
#pragma once

#include "trireme/base/deadline.hpp"

#include <functional>
#include <memory>
#include <string_view>

namespace trireme {

// A moment in a stream's work.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether everything queued before it is done. A hint, no way to wait: a device may put work off
  // until somebody waits for its stream.
  virtual bool reached() = 0;
  // Asks for the work before it to go on although nobody here waits: others may.
  virtual void push() {}
};

// Queueing returns at once; memory that queued work uses stays in place until the work is done.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Shared: whoever waits for a moment may outlive whoever marked it.
  virtual std::shared_ptr<DeviceEvent> record() = 0;
  // What is queued from now on begins after `event`, an event of the same device. The caller does
  // not wait.
  virtual void after(const std::shared_ptr<DeviceEvent>& event) = 0;
  // Queues a call on the host, in a thread that is not the caller's: it may use neither the device
  // nor MPI. What it throws is thrown by wait(), and by wait() of streams that come after it;
  // nothing queued behind it runs.
  virtual void run(std::function<void()> work) = 0;
  // Returns when all that is queued by now is done. Throws Timeout naming `what` past the deadline,
  // Device when the work failed. `idle`, if given, is called while waiting and may throw.
  virtual void wait(std::string_view what, Deadline deadline,
                    const std::function<void()>& idle = {}) = 0;
  // The cudaStream_t, for libraries that queue work of their own; null where there is none.
  virtual void* native() const = 0;
};

}  // namespace trireme
