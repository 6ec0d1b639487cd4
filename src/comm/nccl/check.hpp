// NCCL's and CUDA's return codes become errors here. Private to the room.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <source_location>
#include <string_view>

namespace trireme::comm {

// Throws when `code` is neither success nor ncclInProgress: PeerLost when another rank is at
// fault, Device otherwise.
void check(ncclResult_t code, std::string_view call, ncclComm_t comm = nullptr,
           std::source_location where = std::source_location::current());

// Throws Environment when `code` is not success.
void check(cudaError_t code, std::string_view call,
           std::source_location where = std::source_location::current());

}  // namespace trireme::comm
