#include "ckpt/crc_table.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

namespace trireme::ckpt {

namespace {

void append(std::span<const std::byte> message, std::vector<CrcPiece>& pieces) {
  ensure(message.size() % sizeof(CrcPiece) == 0, "a message of checksums is complete");
  const std::size_t before = pieces.size();
  pieces.resize(before + message.size() / sizeof(CrcPiece));
  if (!message.empty()) std::memcpy(pieces.data() + before, message.data(), message.size());
}

void check_next(const FileMap& map, std::size_t tensor, std::uint64_t expected,
                std::uint64_t found) {
  if (expected == found) return;
  const std::uint64_t size = element_bytes(map.spec(tensor).dtype);
  ensure(false, fmt::format("each element is given once, but {} of {} from element {} on",
                            found > expected ? "no rank gives those" : "several ranks give those",
                            map.spec(tensor).path, std::min(expected, found) / size));
}

// Within one block: `begin` counts from the start of the tensor.
void stage_block(const Segment& segment, std::uint64_t done, std::uint64_t begin,
                 std::span<std::byte> into, std::vector<CrcPiece>& pieces) {
  const bool continues = !pieces.empty() && pieces.back().tensor == segment.tensor &&
                         pieces.back().begin + pieces.back().bytes == begin &&
                         begin % kCrcBlock != 0;
  if (!continues) pieces.push_back({segment.tensor, begin, 0, 0});
  CrcPiece& piece = pieces.back();
  const auto before = static_cast<std::uint32_t>(piece.crc);
  if (segment.data != nullptr) {
    piece.crc = kernels::copy_crc32c({segment.data + done, into.size()}, into, before);
  } else {
    segment.make(done, into);
    piece.crc = kernels::crc32c(into, before);
  }
  piece.bytes += into.size();
}

}  // namespace

std::size_t stage(const FileMap& map, const Segment& segment, std::uint64_t done,
                  std::span<std::byte> into, std::vector<CrcPiece>& pieces) {
  const std::uint64_t first = segment.offset - map.begin(segment.tensor) + done;
  for (std::size_t at = 0; at < into.size();) {
    const std::uint64_t begin = first + at;
    const std::size_t count =
        std::min<std::uint64_t>(into.size() - at, kCrcBlock - begin % kCrcBlock);
    stage_block(segment, done + at, begin, into.subspan(at, count), pieces);
    at += count;
  }
  return into.size();
}

std::vector<CrcPiece> gather_pieces(comm::Communicator& comm, std::span<const CrcPiece> mine) {
  std::vector<comm::Message> out;
  const auto bytes = std::as_bytes(mine);
  if (!comm.is_root() && !mine.empty())
    out.push_back({Rank(0), comm::ByteVector(bytes.begin(), bytes.end())});
  const std::vector<comm::Message> received = comm.exchange(std::move(out), "checkpoint checksums");
  std::vector<CrcPiece> all;
  if (!comm.is_root()) return all;
  append(bytes, all);
  for (const comm::Message& message : received) append(message.bytes, all);
  return all;
}

CrcTables join_pieces(const FileMap& map, std::vector<CrcPiece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const CrcPiece& a, const CrcPiece& b) {
    return std::tie(a.tensor, a.begin) < std::tie(b.tensor, b.begin);
  });
  CrcTables tables(map.size());
  auto piece = pieces.begin();
  for (std::size_t tensor = 0; tensor < map.size(); ++tensor) {
    std::uint64_t at = 0;
    for (; piece != pieces.end() && piece->tensor == tensor; at += piece->bytes, ++piece) {
      check_next(map, tensor, at, piece->begin);
      const auto crc = static_cast<std::uint32_t>(piece->crc);
      if (at % kCrcBlock == 0) {
        tables[tensor].push_back(crc);
      } else {
        tables[tensor].back() = kernels::crc32c_combine(tables[tensor].back(), crc, piece->bytes);
      }
    }
    check_next(map, tensor, map.bytes(tensor), at);
  }
  return tables;
}

}  // namespace trireme::ckpt
