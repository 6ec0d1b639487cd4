// The system calls of a save, in one place: with their retries, their errors and the hook by which
// tests break them.
#pragma once

#include "trireme/base/handle.hpp"
#include "trireme/ckpt/checkpoint.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace trireme::ckpt {

class Io {
 public:
  explicit Io(FaultHook hook) : hook_(std::move(hook)) {}

  // Runs `action` between the hook's two calls. Throws Io when the hook says that the call fails.
  template <class Action>
  auto around(std::string_view call, const std::filesystem::path& path, Action action) const {
    before(call, path);
    if constexpr (std::is_void_v<decltype(action())>) {
      action();
      after(call);
    } else {
      auto result = action();
      after(call);
      return result;
    }
  }

  // All throw Io with path and errno's text.
  void make_folder(const std::filesystem::path& path) const;
  FileDescriptor open(std::string_view call, const std::filesystem::path& path, int flags) const;
  // Opens for writing past the page cache where the file system can; says in `direct` whether it
  // does.
  FileDescriptor open_direct(const std::filesystem::path& path, bool& direct) const;
  // Reserves the space, so that a full disk is noticed before anything is written; where that is
  // not supported only the length is set.
  void allocate(const std::filesystem::path& path, std::uint64_t bytes) const;
  // Writes everything, through EINTR and short writes. Clears `direct` and goes on buffered when
  // the file system accepts O_DIRECT at open but refuses the write.
  void write(std::string_view call, int fd, std::span<const std::byte> bytes, std::uint64_t offset,
             const std::filesystem::path& path, bool& direct) const;
  // Returns false where the file system has no such thing (EINVAL, ENOTSUP).
  bool sync(std::string_view call, int fd, const std::filesystem::path& path) const;
  bool sync_folder(std::string_view call, const std::filesystem::path& path) const;
  void rename(std::string_view call, const std::filesystem::path& from,
              const std::filesystem::path& to) const;
  // Swaps two folders in one atomic step; false where the file system cannot.
  bool exchange(std::string_view call, const std::filesystem::path& a,
                const std::filesystem::path& b) const;

 private:
  int ask(std::string_view call, bool done) const { return hook_ ? hook_(call, done) : 0; }
  void before(std::string_view call, const std::filesystem::path& path) const;
  void after(std::string_view call) const { ask(call, true); }
  bool fails(std::string_view call) const;  // with errno set
  int try_open(std::string_view call, const std::filesystem::path& path,
               int flags) const;  // -errno on failure
  std::ptrdiff_t write_once(std::string_view call, int fd, std::span<const std::byte> bytes,
                            std::uint64_t offset) const;

  FaultHook hook_;
};

// Returns the whole file; throws Corrupt when it is missing or longer than `most`, Io otherwise.
std::string read_text(const std::filesystem::path& path, std::uint64_t most);
// Fills `bytes` from `offset`; throws Corrupt when the file ends before, Io otherwise.
void read_exactly(int fd, std::span<std::byte> bytes, std::uint64_t offset,
                  const std::filesystem::path& path);
// Opens for reading; throws Corrupt when the file is missing, Io otherwise.
FileDescriptor open_to_read(const std::filesystem::path& path);
std::uint64_t size_of(int fd, const std::filesystem::path& path);

}  // namespace trireme::ckpt
