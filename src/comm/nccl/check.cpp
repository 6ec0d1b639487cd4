#include "comm/nccl/check.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <string>

namespace trireme::comm {

void check(ncclResult_t code, std::string_view call, ncclComm_t comm, std::source_location where) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const bool remote = code == ncclRemoteError || code == ncclSystemError;
  Error error(remote ? ErrorKind::kPeerLost : ErrorKind::kDevice,
              fmt::format("{} failed: {}", call, ncclGetErrorString(code)),
              "NCCL_DEBUG=INFO makes NCCL say more; the messages of the other ranks may name the "
              "first failure",
              where);
  const char* const last = ncclGetLastError(comm);
  if (last != nullptr) error.cause = last;
  throw error;
}

void check(cudaError_t code, std::string_view call, std::source_location where) {
  if (code == cudaSuccess) return;
  int count = 0;
  const bool counted = cudaGetDeviceCount(&count) == cudaSuccess;
  throw Error(
      ErrorKind::kEnvironment,
      fmt::format("no GPU for this rank: {}: {} ({} can be seen)", call, cudaGetErrorString(code),
                  counted ? fmt::format("{} GPUs", count) : std::string("no driver or no GPU")),
      "ask the batch system for a GPU for each rank, or run on the host", where);
}

}  // namespace trireme::comm
