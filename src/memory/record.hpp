// The first page of a record on disk, and what it says about the bytes behind it. Private to the
// room.
#pragma once

#include "trireme/memory/tier_file.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace trireme::memory {

struct RecordName {
  std::uint64_t index = 0;
  std::uint64_t stamp = 0;
};

// Fills in the header of `record`.
void seal(std::span<std::byte> record, const RecordName& name, ChecksumFunction checksum);

// Returns what is wrong with `record`, read as `name`: "stale: stamp 11, expected 12"; empty when
// nothing is.
std::string find_damage(std::span<const std::byte> record, const RecordName& name,
                        ChecksumFunction checksum);

}  // namespace trireme::memory
