#include "trireme/memory/host_buffer.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trireme::memory {

namespace {

// Fresh pages are zero already: one store a page is enough to make them present.
void populate(std::byte* data, std::size_t size) {
  constexpr std::size_t kPage = 4096;
  for (std::size_t at = 0; at < size; at += kPage) {
    *reinterpret_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

}  // namespace

HostBuffer::HostBuffer(Bytes size, std::string label, bool touch)
    : size_(static_cast<std::size_t>(size.value)), label_(std::move(label)) {
  if (size_ == 0) return;
  void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    Error error(ErrorKind::kOutOfMemory,
                fmt::format("cannot reserve {} for {}", human(size), label_),
                "use more ranks or nodes, strategy zero3, or a smaller model");
    error.cause = std::strerror(errno);
    throw error;
  }
  data_ = static_cast<std::byte*>(base);
  madvise(base, size_, MADV_HUGEPAGE);  // a wish: nothing depends on it
  if (touch) populate(data_, size_);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      label_(std::move(other.label_)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(label_, other.label_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace trireme::memory
