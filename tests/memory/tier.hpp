// What the tests of the disk tier start from. The checksum is a plain one, bit by bit: the room of
// the fast one stands below.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/base/handle.hpp"
#include "trireme/memory/tier_file.hpp"
#include <support/error_of.hpp>
#include <support/temp_dir.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace trireme::memory::testing {

using trireme::testing::error_of;

inline constexpr std::size_t kPayload = 3 * 4096;
inline constexpr std::size_t kRecord = kRecordHeader + kPayload;

inline std::uint32_t plain_crc32c(std::span<const std::byte> bytes, std::uint32_t previous) {
  std::uint32_t crc = ~previous;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

// Bytes that follow from the record and the stamp, so that any other record or stamp shows.
inline void fill(std::span<std::byte> payload, std::size_t index, std::uint64_t stamp) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    payload[i] = static_cast<std::byte>((i * 131 + index * 31 + stamp * 7 + (i >> 12)) >> 2);
  }
}

inline bool is_filled(std::span<const std::byte> payload, std::size_t index, std::uint64_t stamp) {
  std::vector<std::byte> expected(payload.size());
  fill(expected, index, stamp);
  return std::memcmp(expected.data(), payload.data(), payload.size()) == 0;
}

// The file that a TierFile keeps open without a name in `folder`, opened again through /proc: the
// way to what is on disk that a fault of the hardware would take.
inline FileDescriptor open_behind(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(folder.string() + "/"))
      return FileDescriptor(::open(entry.path().c_str(), O_RDWR));
  }
  return {};
}

}  // namespace trireme::memory::testing
