#include "parallel/fabric.hpp"

#include "trireme/base/error.hpp"

#include "parallel/device_fabric.hpp"
#include "parallel/ordered_exchange.hpp"
#include <fmt/format.h>

namespace trireme::parallel {

namespace {

class HostFabric final : public Fabric {
 public:
  explicit HostFabric(comm::Session& session) : session_(session) {}

  comm::Communicator& world() override { return session_.world(); }
  comm::NodeGroup& node() override { return session_.node(); }
  const comm::Topology& topology() const override { return session_.topology(); }

  std::unique_ptr<Window> window(std::size_t mine, std::string /*label*/) override {
    return std::make_unique<Window>(node().allocate(mine));
  }
  Buffer buffer(Bytes size, std::string label) override {
    return Buffer(memory::HostBuffer(size, std::move(label)));
  }
  std::unique_ptr<Exchange> exchange(const Layout& layout, Lane /*lane*/) override {
    return std::make_unique<OrderedExchange>(world(), layout);
  }

 private:
  comm::Session& session_;
};

}  // namespace

void require(comm::Session& session, ComputeOn compute_on) {
  if (compute_on != ComputeOn::kGpu) return;
  session.world().agree("looking for a GPU", [] {
    const auto gpu = memory::open_gpu({});
    throw Error(ErrorKind::kEnvironment,
                fmt::format("{} cannot be used: the kernels of this version run on the host",
                            gpu->describe()),
                "set run.device: cpu");
  });
}

std::unique_ptr<Fabric> make_fabric(comm::Session& session, ComputeOn compute_on) {
  require(session, compute_on);
  switch (compute_on) {
    case ComputeOn::kHost:
      return std::make_unique<HostFabric>(session);
    case ComputeOn::kGpu:
      break;
    case ComputeOn::kEarlyDevice:
      return make_device_fabric(session, memory::HostTiming::kEarly);
    case ComputeOn::kLateDevice:
      return make_device_fabric(session, memory::HostTiming::kLate);
  }
  throw Error(ErrorKind::kInternal, "nothing computes on a GPU that is refused");
}

}  // namespace trireme::parallel
