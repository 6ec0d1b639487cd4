// Streams and events of CUDA. Private to the room.
#pragma once

#include "trireme/memory/device.hpp"

#include <memory>
#include <string>

namespace trireme::memory {

std::shared_ptr<DeviceStream> make_cuda_stream(int device, std::string label,
                                               StreamPriority priority);

}  // namespace trireme::memory
