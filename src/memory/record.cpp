#include "memory/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace trireme::memory {

namespace {

constexpr std::array<char, 8> kMagic = {'T', 'R', 'I', 'R', 'E', 'C', '0', '1'};

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint64_t index = 0;
  std::uint64_t stamp = 0;
  std::uint64_t payload = 0;
  std::uint32_t payload_checksum = 0;
  std::uint32_t own_checksum = 0;  // of all fields above
};
static_assert(sizeof(Header) == 40);

std::uint32_t checksum_of(const Header& header, ChecksumFunction checksum) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, own_checksum)), 0);
}

bool is_blank(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

void seal(std::span<std::byte> record, const RecordName& name, ChecksumFunction checksum) {
  const auto payload = record.subspan(kRecordHeader);
  Header header;
  header.index = name.index;
  header.stamp = name.stamp;
  header.payload = payload.size();
  header.payload_checksum = checksum(payload, 0);
  header.own_checksum = checksum_of(header, checksum);
  std::memset(record.data(), 0, kRecordHeader);
  std::memcpy(record.data(), &header, sizeof header);
}

std::string find_damage(std::span<const std::byte> record, const RecordName& name,
                        ChecksumFunction checksum) {
  Header header;
  std::memcpy(&header, record.data(), sizeof header);
  const auto payload = record.subspan(kRecordHeader);
  if (is_blank(record.first(sizeof header))) return "it was never written";
  if (header.magic != kMagic) return "damaged: it does not begin like a record";
  if (const std::uint32_t found = checksum_of(header, checksum); found != header.own_checksum) {
    return fmt::format("damaged: its header has CRC32C {:08x}, expected {:08x}", found,
                       header.own_checksum);
  }
  if (header.index != name.index) return fmt::format("misplaced: it is record {}", header.index);
  if (header.stamp != name.stamp) {
    return fmt::format("stale: stamp {}, expected {}", header.stamp, name.stamp);
  }
  if (header.payload != payload.size()) {
    return fmt::format("damaged: it has {} bytes, expected {}", header.payload, payload.size());
  }
  if (const std::uint32_t found = checksum(payload, 0); found != header.payload_checksum) {
    return fmt::format("damaged: CRC32C {:08x}, expected {:08x}", found, header.payload_checksum);
  }
  return {};
}

}  // namespace trireme::memory
