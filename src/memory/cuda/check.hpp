// CUDA's return codes become errors here. Private to the room.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

namespace trireme::memory {

// Throws Device with CUDA's own text when `code` is not success.
void check(cudaError_t code, std::string_view call,
           std::source_location where = std::source_location::current());

}  // namespace trireme::memory
