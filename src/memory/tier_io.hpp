// How a transfer reaches the kernel: one attempt at one read or write, started now and ended later
// by a call from another thread. Retries, order and errors are the file's affair. Private to the
// room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::memory {

// Attempts that are started at once: enough to keep a fast disk busy with pieces of a mebibyte.
inline constexpr unsigned kTierDepth = 32;

struct Attempt {
  bool write = false;
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::uint64_t offset = 0;
};

class TierIo {
 public:
  // Called once for each attempt with the bytes moved, or -errno.
  using Done = std::function<void(Attempt&, std::ptrdiff_t)>;

  virtual ~TierIo() = default;  // no attempt is under way
  // One thread at a time. `attempt` stays in place until it is done. Returns 0, or -errno when it
  // never began.
  virtual int start(Attempt& attempt) = 0;
  virtual std::string_view name() const = 0;
};

// Returns null where there is no io_uring, and says why.
std::unique_ptr<TierIo> make_io_uring(int fd, TierIo::Done done, std::string& why_not);
std::unique_ptr<TierIo> make_io_threads(int fd, TierIo::Done done);

}  // namespace trireme::memory
