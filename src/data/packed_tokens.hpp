// Integers of 1, 2, 4 or 8 bytes, little-endian, one behind the other in a file: what all token
// formats keep behind their headers.
#pragma once

#include "data/input_file.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace trireme::data::detail {

enum class TokenType { kUint8, kInt8, kInt16, kUint16, kInt32, kUint32, kInt64 };

std::size_t size_of(TokenType type);
std::string_view name_of(TokenType type);

class PackedTokens {
 public:
  PackedTokens(InputFile file, TokenType type, std::uint64_t offset, std::uint64_t count)
      : file_(std::move(file)), type_(type), offset_(offset), count_(count) {}

  const std::filesystem::path& path() const { return file_.path(); }
  TokenType type() const { return type_; }
  std::uint64_t count() const { return count_; }
  // Throws Corrupt, with path and offset, for a negative id.
  void read(std::uint64_t first, std::span<std::int64_t> tokens) const;

 private:
  InputFile file_;
  TokenType type_;
  std::uint64_t offset_;
  std::uint64_t count_;
};

}  // namespace trireme::data::detail
