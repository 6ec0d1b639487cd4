#include "ckpt/scratch.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/io.hpp"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace trireme::ckpt {

Scratch::Scratch(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::string pattern = (folder_ / ".scratch-XXXXXX").string();
  const int fd = ::mkostemp(pattern.data(), O_CLOEXEC);
  if (fd < 0) throw_errno("make a scratch file in", folder_.string());
  file_ = FileDescriptor(fd);
  ::unlink(pattern.c_str());
}

Scratch::~Scratch() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

std::uint64_t Scratch::append(std::span<const std::byte> bytes) {
  ensure(mapped_ == nullptr, "nothing is appended once the bytes are in use");
  const std::uint64_t at = size_;
  bool direct = false;
  Io({}).write("write", file_.get(), bytes, at, folder_ / "(scratch file)", direct);
  size_ += bytes.size();
  return at;
}

const std::byte* Scratch::map() {
  if (size_ == 0 || mapped_ != nullptr) return mapped_;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) throw_errno("map a scratch file in", folder_.string());
  mapped_ = static_cast<std::byte*>(memory);
  mapped_bytes_ = size_;
  return mapped_;
}

}  // namespace trireme::ckpt
