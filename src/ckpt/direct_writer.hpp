// Writes one rank's share of state.h5 past the page cache: bytes are copied into resident, aligned
// slots, their checksum taken on the way, and a second thread writes full slots while the next is
// filled. Slots are reused by every save, since touching fresh memory costs more than copying.
#pragma once

#include "ckpt/crc_table.hpp"
#include "ckpt/io.hpp"
#include "ckpt/plan.hpp"
#include "ckpt/slots.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace trireme::ckpt {

// The writer's memory, touched once when made.
class StagingRing {
 public:
  static constexpr std::size_t kSlots = 3;
  static constexpr std::size_t kSlotBytes = Slots::kSlotBytes;

  // Throws OutOfMemory.
  StagingRing() : slots_(kSlots, "staging a checkpoint") {}

  std::span<std::byte> slot(std::size_t index) { return slots_[index]; }
  // All slots, one behind the other.
  std::span<std::byte> memory() { return {slots_[0].data(), kSlots * kSlotBytes}; }

 private:
  Slots slots_;
};

// What a rank's part of a save came to.
struct Written {
  std::vector<CrcPiece> pieces;
  bool direct = false;
  bool synced = false;
};

// Writes `segments` (in file order, whole 4 KiB blocks up to the ends of tensors), makes them
// durable and returns their checksums. Throws Io.
Written write_segments(const Io& io, StagingRing& ring, const std::filesystem::path& path,
                       const FileMap& map, std::span<const Segment> segments);

}  // namespace trireme::ckpt
