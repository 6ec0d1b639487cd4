// Streams and events of the host device. Private to the room.
#pragma once

#include "trireme/memory/device.hpp"

#include <memory>
#include <string>

namespace trireme::memory {

std::shared_ptr<DeviceStream> make_host_stream(std::string label, HostTiming timing);

}  // namespace trireme::memory
