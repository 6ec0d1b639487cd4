// Bytes that wait on disk for their place in a checkpoint, instead of in memory: a file without a
// name, gone with the process.
#pragma once

#include "trireme/base/handle.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace trireme::ckpt {

class Scratch {
 public:
  // Makes the file in `folder`, which exists. Throws Io.
  explicit Scratch(std::filesystem::path folder);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns where the bytes went. Throws Io, as when the disk is full.
  std::uint64_t append(std::span<const std::byte> bytes);
  // Forgets everything from `offset` on.
  void cut(std::uint64_t offset) { size_ = offset; }
  std::uint64_t size() const { return size_; }

  // Returns all bytes in memory, where they take no more room than the page cache gives them; after
  // this nothing is appended.
  const std::byte* map();

 private:
  std::filesystem::path folder_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
  std::uint64_t mapped_bytes_ = 0;
  std::byte* mapped_ = nullptr;
};

}  // namespace trireme::ckpt
