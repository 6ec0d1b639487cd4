// Reads blocks of state.h5 as fast as the disk gives them: a second thread fills resident slots in
// large requests, past the page cache where the file system can, while the caller checks and copies
// what came before.
#pragma once

#include "trireme/base/handle.hpp"
#include "trireme/ckpt/checkpoint.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace trireme::ckpt {

// A place in the file, which starts on a 4 KiB border.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class BlockReader {
 public:
  // `file` is open for reading and lives as long. `file_bytes` is its length as it should be.
  BlockReader(int file, std::filesystem::path path, std::uint64_t file_bytes)
      : file_(file), path_(std::move(path)), file_bytes_(file_bytes) {}

  // Gives the bytes of each place in turn to `use(index, bytes)`. What cannot be read that way comes
  // as no bytes at all: whoever wants to know why reads it again. An exception of `use` ends it.
  using Use = std::function<void(std::size_t index, std::span<const std::byte> bytes)>;
  void each(std::span<const Place> places, PageCache cache, const Use& use) const;

 private:
  int file_;
  std::filesystem::path path_;
  std::uint64_t file_bytes_;
};

}  // namespace trireme::ckpt
