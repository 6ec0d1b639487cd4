// CRC32C (Castagnoli) for blocks of stored state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::kernels {

// Returns the CRC32C of `bytes`, continuing from `previous` (0 to start), as iSCSI and ext4 define
// it.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

// Copies and returns the CRC of what was copied, in one pass. `to` is at least as long as `from`.
std::uint32_t copy_crc32c(std::span<const std::byte> from, std::span<std::byte> to,
                          std::uint32_t previous = 0);

// Returns the CRC of A followed by B from crc(A), crc(B) and the length of B.
std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t length_b);

namespace detail {
// The path of machines without a CRC instruction, reachable so that tests can compare the two.
std::uint32_t crc32c_in_software(std::span<const std::byte> bytes, std::uint32_t previous = 0);
}  // namespace detail

}  // namespace trireme::kernels
