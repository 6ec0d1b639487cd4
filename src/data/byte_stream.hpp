// A file of text as a stream of bytes, unpacked on the way where its name says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace trireme::data::detail {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Returns how many bytes were written to `out`; 0 only at the end. Throws Corrupt, with the path,
  // where packed data is damaged or ends too early.
  virtual std::size_t read(std::span<char> out) = 0;
};

// Starts at byte `begin`, which must be 0 for a packed file.
std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path, std::uint64_t begin);

}  // namespace trireme::data::detail
