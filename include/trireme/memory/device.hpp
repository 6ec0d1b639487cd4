// A device for the work of a rank: its memory from a pool, host memory that it reaches by itself,
// and copies on streams. Two implementations behind one interface: a GPU (CUDA), and the host
// itself, on which everything above is tested without one. One thread owns a device and its buffers.
#pragma once

#include "trireme/base/device_stream.hpp"
#include "trireme/base/units.hpp"
#include "trireme/memory/host_buffer.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace trireme::memory {

class DevicePool;

// Memory of a device, back in its pool when destroyed. It belongs to the work of one stream: what
// that stream has queued before the end may still use it, and others get it only afterwards.
class DeviceBuffer {
 public:
  struct Block;

  DeviceBuffer();
  DeviceBuffer(std::shared_ptr<DevicePool> pool, std::unique_ptr<Block> block);
  DeviceBuffer(DeviceBuffer&&) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) noexcept;
  ~DeviceBuffer();

  // Addresses of the device: only its own work may follow them. 512-byte aligned.
  std::span<std::byte> bytes() const;

 private:
  void give_back() noexcept;

  std::shared_ptr<DevicePool> pool_;  // shared: buffers may outlive the device object
  std::unique_ptr<Block> block_;
};

// Makes host memory reachable for the device's copy engines as long as the object lives.
class Pin {
 public:
  virtual ~Pin() = default;
};

// Page-locked host memory: copies to and from it do not hold up the caller.
struct PinnedBuffer {
  HostBuffer memory;
  std::unique_ptr<Pin> pin;  // declared last: unpinned before the memory goes
};

struct DeviceUsage {
  Bytes total;   // of the device, or the limit
  Bytes in_use;  // in buffers
  Bytes pooled;  // kept for the next buffers
  Bytes peak;    // the most that was in use
};

enum class StreamPriority { kNormal, kHigh };

class Device {
 public:
  virtual ~Device() = default;

  // "NVIDIA H200 (0000:1b:00.0, compute capability 9.0)"
  virtual std::string describe() const = 0;
  // Shared: buffers hold the stream that they belong to.
  virtual std::shared_ptr<DeviceStream> stream(
      std::string label, StreamPriority priority = StreamPriority::kNormal) = 0;

  // Not initialised. Throws OutOfMemory with the label, the size and what holds the rest.
  DeviceBuffer allocate(Bytes size, std::string label, std::shared_ptr<DeviceStream> stream);
  // Pins memory that somebody else owns: whole pages, and not pinned already.
  virtual std::unique_ptr<Pin> pin(std::span<std::byte> memory, std::string label) = 0;
  PinnedBuffer pinned(Bytes size, std::string label);

  // Queue work; `to` and `from` are of the device or the host and of one size.
  virtual void copy(std::span<std::byte> to, std::span<const std::byte> from,
                    DeviceStream& stream) = 0;
  virtual void zero(std::span<std::byte> to, DeviceStream& stream) = 0;

  // Whether all of it lies in one buffer of this device.
  bool owns(std::span<const std::byte> memory) const;
  DeviceUsage usage() const;
  // Gives the pool's free memory back to the device.
  void trim();

 protected:
  explicit Device(std::shared_ptr<DevicePool> pool) : pool_(std::move(pool)) {}

 private:
  std::shared_ptr<DevicePool> pool_;
};

struct DeviceOptions {
  int index = 0;           // among the devices that this process may see
  Bytes limit = Bytes(0);  // the most memory to take; 0 for all there is
};

// Throws Environment naming what was probed: the build, the driver, the devices.
std::unique_ptr<Device> open_gpu(const DeviceOptions& options);

// When the work of a stream of the host device happens.
enum class HostTiming {
  kEarly,  // at once, in a thread of the stream: what is reused too early is seen by tests
  kLate,   // there too, but not before somebody waits for it: what is used without waiting, or
           // waits for too little, is seen by tests each time
};

// The host as a device. Memory comes filled with a pattern, so that nobody counts on zeros.
std::unique_ptr<Device> open_host_device(const DeviceOptions& options,
                                         HostTiming timing = HostTiming::kEarly);

}  // namespace trireme::memory
