#include "comm/nccl/unique_id.hpp"

#include "trireme/base/error.hpp"

#include "comm/nccl/check.hpp"

#include <cstring>
#include <span>

namespace trireme::comm {

ByteVector make_nccl_id() {
  ncclUniqueId id{};
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  const auto bytes = std::as_bytes(std::span(&id, 1));
  return {bytes.begin(), bytes.end()};
}

std::vector<ncclUniqueId> as_nccl(const std::vector<ByteVector>& ids) {
  std::vector<ncclUniqueId> result;
  for (const ByteVector& bytes : ids) {
    ensure(bytes.size() == sizeof(ncclUniqueId), "an id of NCCL arrives whole");
    std::memcpy(&result.emplace_back(), bytes.data(), bytes.size());
  }
  return result;
}

}  // namespace trireme::comm
