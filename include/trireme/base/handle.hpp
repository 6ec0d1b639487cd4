// Move-only owner of a C handle. Traits name the handle's type, its null value and how it is
// closed.
#pragma once

#include <utility>

namespace trireme {

// Traits: `using Type`, `static Type null()`, `static void close(Type) noexcept`.
template <class Traits>
class Handle {
 public:
  using Type = typename Traits::Type;

  Handle() = default;
  explicit Handle(Type raw) : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, Traits::null())) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = std::exchange(other.raw_, Traits::null());
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  Type get() const { return raw_; }
  Type* address() { return &raw_; }
  explicit operator bool() const { return raw_ != Traits::null(); }
  Type release() { return std::exchange(raw_, Traits::null()); }
  void reset() noexcept {
    if (raw_ != Traits::null()) Traits::close(std::exchange(raw_, Traits::null()));
  }

 private:
  Type raw_ = Traits::null();
};

struct FileDescriptorTraits {
  using Type = int;
  static int null() { return -1; }
  static void close(int fd) noexcept;
};
using FileDescriptor = Handle<FileDescriptorTraits>;

}  // namespace trireme
