#include "data/packed_tokens.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

namespace trireme::data::detail {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// The packed tokens lie at the end of `tokens` and are widened from the front, which never
// overtakes them: token i ends at byte 8 i + 7, and packed token i + 1 lies behind that until i is
// the last.
template <class Packed>
void widen(std::span<std::int64_t> tokens) {
  const std::byte* from = std::as_bytes(tokens).data() + tokens.size() * (8 - sizeof(Packed));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Packed packed;
    std::memcpy(&packed, from + i * sizeof(Packed), sizeof(Packed));
    tokens[i] = static_cast<std::int64_t>(packed);
  }
}

void widen(TokenType type, std::span<std::int64_t> tokens) {
  switch (type) {
    case TokenType::kUint8:
      return widen<std::uint8_t>(tokens);
    case TokenType::kInt8:
      return widen<std::int8_t>(tokens);
    case TokenType::kInt16:
      return widen<std::int16_t>(tokens);
    case TokenType::kUint16:
      return widen<std::uint16_t>(tokens);
    case TokenType::kInt32:
      return widen<std::int32_t>(tokens);
    case TokenType::kUint32:
      return widen<std::uint32_t>(tokens);
    case TokenType::kInt64:
      return;
  }
}

}  // namespace

std::size_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kUint32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

std::string_view name_of(TokenType type) {
  static constexpr std::array<std::string_view, 7> kNames{"uint8", "int8",   "int16", "uint16",
                                                          "int32", "uint32", "int64"};
  return kNames[static_cast<std::size_t>(type)];
}

void PackedTokens::read(std::uint64_t first, std::span<std::int64_t> tokens) const {
  ensure(first <= count_ && tokens.size() <= count_ - first, "tokens outside the file");
  const std::size_t width = size_of(type_);
  const std::uint64_t offset = offset_ + first * width;
  file_.read(offset, std::as_writable_bytes(tokens).last(tokens.size() * width));
  widen(type_, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0) continue;
    throw Error(ErrorKind::kCorrupt, fmt::format("{}: token {} at offset {} is negative",
                                                 path().string(), tokens[i], offset + i * width));
  }
}

}  // namespace trireme::data::detail
