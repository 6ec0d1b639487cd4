// What weights and gradients stand on: memory, and ways for bytes to other ranks. On the host the
// ranks of a node see each other's memory, and messages go between nodes. A rank with a device of
// its own is a node of one rank: it shares nothing, and everything goes between devices. What is
// built on a fabric does not know which it is. Private to the room.
#pragma once

#include "trireme/comm/session.hpp"
#include "trireme/memory/device.hpp"
#include "trireme/memory/host_buffer.hpp"
#include "trireme/parallel/compute_on.hpp"

#include "parallel/exchange.hpp"

#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace trireme::parallel {

// Zeroed memory of this rank alone.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(memory::HostBuffer memory) : memory_(std::move(memory)) {}
  explicit Buffer(memory::DeviceBuffer memory) : memory_(std::move(memory)) {}

  std::span<std::byte> bytes() const {
    return std::visit([](const auto& memory) { return memory.bytes(); }, memory_);
  }
  // `count` values of T from byte `offset` on.
  template <class T>
  std::span<T> as(std::size_t offset, std::size_t count) const {
    return {reinterpret_cast<T*>(bytes().data() + offset), count};
  }
  template <class T>
  std::span<T> as() const {
    return as<T>(0, bytes().size() / sizeof(T));
  }

 private:
  std::variant<memory::HostBuffer, memory::DeviceBuffer> memory_;
};

// Zeroed memory of each rank of a node that all of them see.
class Window {
 public:
  explicit Window(comm::SharedSegments segments) : memory_(std::move(segments)) {}
  explicit Window(Buffer alone) : memory_(std::move(alone)) {}  // of a node of one rank

  std::span<std::byte> of(int local) const {
    const auto* shared = std::get_if<comm::SharedSegments>(&memory_);
    return shared != nullptr ? shared->of(local) : std::get<Buffer>(memory_).bytes();
  }

 private:
  std::variant<comm::SharedSegments, Buffer> memory_;
};

// Exchanges of different lanes overlap.
enum class Lane { kGather, kReduce };

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual comm::Communicator& world() = 0;
  // The ranks that see each other's windows, and how all ranks are spread over such nodes.
  virtual comm::NodeGroup& node() = 0;
  virtual const comm::Topology& topology() const = 0;

  // @collective on the node.
  virtual std::unique_ptr<Window> window(std::size_t mine, std::string label) = 0;
  virtual Buffer buffer(Bytes size, std::string label) = 0;
  // Its messages lie in windows and buffers. An exchange outlives no fabric.
  virtual std::unique_ptr<Exchange> exchange(const Layout& layout, Lane lane) = 0;
};

// @collective. Throws Environment where the machine has not what is asked for.
std::unique_ptr<Fabric> make_fabric(comm::Session& session, ComputeOn compute_on);

}  // namespace trireme::parallel
