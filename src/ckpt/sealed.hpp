// Messages of a save with their checksum: one that is still to come or was torn is told from one
// that came, since ranks that wrote to places that root did not give would damage each other's bytes.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/checksum.hpp"

#include <cstdint>
#include <cstring>
#include <span>

namespace trireme::ckpt {

inline comm::ByteVector sealed(std::span<const std::byte> bytes) {
  comm::ByteVector message(bytes.begin(), bytes.end());
  const std::uint32_t crc = kernels::crc32c(bytes);
  const auto check = std::as_bytes(std::span(&crc, 1));
  message.insert(message.end(), check.begin(), check.end());
  return message;
}

// Returns what was sealed. Throws Internal when it is not whole.
inline std::span<const std::byte> unsealed(std::span<const std::byte> message) {
  std::uint32_t crc = 0;
  ensure(message.size() >= sizeof(crc), "root's plan is complete");
  const auto bytes = message.first(message.size() - sizeof(crc));
  std::memcpy(&crc, bytes.data() + bytes.size(), sizeof(crc));
  ensure(kernels::crc32c(bytes) == crc, "root's plan arrives as it was sent");
  return bytes;
}

}  // namespace trireme::ckpt
