// Each rank with a device of its own. Private to the room.
#pragma once

#include "parallel/fabric.hpp"

#include <memory>

namespace trireme::parallel {

// @collective. On the host as the device.
std::unique_ptr<Fabric> make_device_fabric(comm::Session& session, memory::HostTiming timing);

}  // namespace trireme::parallel
