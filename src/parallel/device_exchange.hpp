// An exchange between devices: everything is queued on a stream at once, also what is done with the
// data, and goes on while the network computes. Private to the room.
#pragma once

#include "trireme/base/device_stream.hpp"
#include "trireme/comm/device_group.hpp"
#include "trireme/memory/device.hpp"

#include "parallel/exchange.hpp"

#include <memory>

namespace trireme::parallel {

// A stream, and the group whose operations go there.
struct DeviceLane {
  std::shared_ptr<DeviceStream> stream;
  std::unique_ptr<comm::DeviceGroup> group;
};

class DeviceExchange : public Exchange {
 public:
  DeviceExchange(memory::Device& device, DeviceLane& lane, const Layout& layout);
  // Ends the lane if data is still on its way to memory that may go now.
  ~DeviceExchange() override;
  DeviceExchange(const DeviceExchange&) = delete;
  DeviceExchange& operator=(const DeviceExchange&) = delete;

  void begin(std::size_t unit, int tag, std::vector<Outgoing> out, std::vector<Incoming> in,
             std::function<void()> then = {}) override;
  bool done() override;
  void wait(std::string_view what, const std::function<void()>& idle) override;

 private:
  struct Heads;

  void exchange_heads(std::size_t unit, const std::vector<Outgoing>& out,
                      const std::vector<Incoming>& in);

  memory::Device& device_;
  DeviceLane& lane_;
  const Layout& layout_;
  std::shared_ptr<Heads> heads_;  // shared with queued work
  std::shared_ptr<DeviceEvent> end_;
  bool waiting_ = false;
};

}  // namespace trireme::parallel
