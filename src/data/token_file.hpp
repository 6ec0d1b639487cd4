// One open source: where its tokens are and how to read a stretch of them.
#pragma once

#include "trireme/base/handle.hpp"

#include <cstdint>
#include <filesystem>
#include <span>

namespace trireme::data::detail {

// A file of text whose every byte is a token.
class ByteFile {
 public:
  // Throws Config, without the path in the message, when the file is not a readable regular file.
  explicit ByteFile(std::filesystem::path path);

  std::uint64_t num_tokens() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

  // Writes the tokens first, first + 1, ...; throws Io when they cannot all be read.
  void read(std::uint64_t first, std::span<std::int64_t> tokens) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace trireme::data::detail
