// Checksums of what was written, as ranks collect them and as the manifest keeps them.
#pragma once

#include "trireme/comm/communicator.hpp"

#include "ckpt/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::ckpt {

// The CRC of `bytes` bytes of a tensor from `begin` on, within one CRC block.
struct CrcPiece {
  std::uint64_t tensor = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t crc = 0;
};

// Copies `into.size()` bytes of a segment, from `done` of it on, and adds their checksums: one piece
// for each block, also over several calls. Returns the number of bytes.
std::size_t stage(const FileMap& map, const Segment& segment, std::uint64_t done,
                  std::span<std::byte> into, std::vector<CrcPiece>& pieces);

// tables[tensor][block]
using CrcTables = std::vector<std::vector<std::uint32_t>>;

// @collective. Returns all ranks' pieces on root, nothing elsewhere.
std::vector<CrcPiece> gather_pieces(comm::Communicator& comm, std::span<const CrcPiece> mine);

// Joins pieces into the CRC of every block of every tensor. Throws Internal unless they tile every
// tensor exactly once.
CrcTables join_pieces(const FileMap& map, std::vector<CrcPiece> pieces);

}  // namespace trireme::ckpt
