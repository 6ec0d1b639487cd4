// Large host memory: mapped once, touched once, labelled, and never allocated inside a step. First
// touch of fresh pages costs more than the arithmetic done on them.
#pragma once

#include "trireme/base/units.hpp"

#include <cstddef>
#include <span>
#include <string>

namespace trireme::memory {

// Page-aligned, zeroed memory of its own mapping, with huge pages where the kernel gives them.
class HostBuffer {
 public:
  HostBuffer() = default;
  // Throws OutOfMemory with the label and the size. `touch`: fault all pages now.
  HostBuffer(Bytes size, std::string label, bool touch = true);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  std::span<std::byte> bytes() const { return {data_, size_}; }
  const std::string& label() const { return label_; }

  // Returns the buffer as `count` values of T from byte `offset` on (a multiple of T's alignment).
  template <class T>
  std::span<T> as(std::size_t offset, std::size_t count) const {
    return {reinterpret_cast<T*>(data_ + offset), count};
  }
  template <class T>
  std::span<T> as() const {
    return as<T>(0, size_ / sizeof(T));
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::string label_;
};

}  // namespace trireme::memory
