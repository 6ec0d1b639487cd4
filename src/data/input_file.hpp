// A regular file that is read by position. Files are read, not mapped: one that is cut short while
// a run uses it is an Io error that names it, where a mapping would kill the process with SIGBUS.
#pragma once

#include "trireme/base/handle.hpp"

#include <cstdint>
#include <filesystem>
#include <span>

namespace trireme::data::detail {

class InputFile {
 public:
  // Throws Config, without the path in the message, when the file is not a readable regular file.
  explicit InputFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  // Fills `bytes` from `offset` on; throws Io when the file has become shorter or cannot be read.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace trireme::data::detail
