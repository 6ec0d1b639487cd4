// NCCL's own id of a group. Private to the room.
#pragma once

#include "trireme/comm/communicator.hpp"

#include <nccl.h>

#include <vector>

namespace trireme::comm {

// Whether NCCL may meet at several ids.
inline constexpr bool kSeveralIds = NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0);

// Works where there is no GPU.
ByteVector make_nccl_id();
std::vector<ncclUniqueId> as_nccl(const std::vector<ByteVector>& ids);

}  // namespace trireme::comm
