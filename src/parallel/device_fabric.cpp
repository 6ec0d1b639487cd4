#include "parallel/device_fabric.hpp"

#include "parallel/device_exchange.hpp"

#include <array>
#include <chrono>

namespace trireme::parallel {

namespace {

constexpr std::chrono::seconds kZeroing{600};

class DeviceFabric final : public Fabric {
 public:
  DeviceFabric(comm::Session& session, memory::HostTiming timing)
      : alone_(session.each_alone()),
        device_(memory::open_host_device({}, timing)),
        compute_(device_->stream("compute")) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      // Of the session's world, which can name the ranks of a node that are late.
      lanes_[i] = {device_->stream(kNames[i], memory::StreamPriority::kHigh),
                   comm::make_host_group(session.world())};
    }
  }

  comm::Communicator& world() override { return alone_->world(); }
  comm::NodeGroup& node() override { return alone_->node(); }
  const comm::Topology& topology() const override { return alone_->topology(); }

  std::unique_ptr<Window> window(std::size_t mine, std::string label) override {
    return std::make_unique<Window>(
        buffer(Bytes(static_cast<std::int64_t>(mine)), std::move(label)));
  }

  Buffer buffer(Bytes size, std::string label) override {
    memory::DeviceBuffer memory = device_->allocate(size, label, compute_);
    device_->zero(memory.bytes(), *compute_);
    compute_->wait(label, Deadline::after(kZeroing));
    return Buffer(std::move(memory));
  }

  std::unique_ptr<Exchange> exchange(const Layout& layout, Lane lane) override {
    return std::make_unique<DeviceExchange>(*device_, lanes_[static_cast<std::size_t>(lane)],
                                            layout);
  }

 private:
  static constexpr std::array<const char*, 2> kNames{"gather", "reduce"};

  std::unique_ptr<comm::Session> alone_;
  std::unique_ptr<memory::Device> device_;
  std::shared_ptr<DeviceStream> compute_;
  std::array<DeviceLane, 2> lanes_;
};

}  // namespace

std::unique_ptr<Fabric> make_device_fabric(comm::Session& session, memory::HostTiming timing) {
  return std::make_unique<DeviceFabric>(session, timing);
}

}  // namespace trireme::parallel
