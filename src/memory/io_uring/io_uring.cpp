// Attempts through io_uring: one system call starts one, a thread of its own hears of all ends.
#include "memory/tier_io.hpp"
#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace trireme::memory {

namespace {

class IoUring final : public TierIo {
 public:
  IoUring(int fd, Done done) : fd_(fd), done_(std::move(done)) {}

  // Returns 0 or an errno.
  int open() {
    const int code = io_uring_queue_init(2 * kTierDepth, &ring_, 0);
    if (code < 0) return -code;
    open_ = true;
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool able = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                      io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe != nullptr) io_uring_free_probe(probe);
    if (!able) return ENOSYS;
    reaper_ = std::thread([this] { reap(); });
    return 0;
  }

  ~IoUring() override {
    if (reaper_.joinable()) {
      start_nothing(nullptr);
      reaper_.join();
    }
    if (open_) io_uring_queue_exit(&ring_);
  }

  int start(Attempt& attempt) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    const auto size = static_cast<unsigned>(attempt.size);
    if (attempt.write) {
      io_uring_prep_write(entry, fd_, attempt.data, size, attempt.offset);
    } else {
      io_uring_prep_read(entry, fd_, attempt.data, size, attempt.offset);
    }
    io_uring_sqe_set_data(entry, &attempt);
    const int code = submit();
    if (code >= 0) return 0;
    // The entry is still in the queue and goes out with the next one: as nothing.
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data(entry, &ignored_);
    return code;
  }

  std::string_view name() const override { return "io_uring"; }

 private:
  void start_nothing(Attempt* data) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data(entry, data);
    while (submit() == -EAGAIN) std::this_thread::yield();
  }

  int submit() {
    int code = io_uring_submit(&ring_);
    while (code == -EINTR) code = io_uring_submit(&ring_);
    return code;
  }

  void reap() {
    for (;;) {
      io_uring_cqe* end = nullptr;
      if (io_uring_wait_cqe(&ring_, &end) < 0) continue;  // EINTR
      auto* const attempt = static_cast<Attempt*>(io_uring_cqe_get_data(end));
      const int result = end->res;
      io_uring_cqe_seen(&ring_, end);
      if (attempt == nullptr) return;
      if (attempt != &ignored_) done_(*attempt, result);
    }
  }

  int fd_;
  Done done_;
  io_uring ring_{};
  bool open_ = false;
  Attempt ignored_;
  std::thread reaper_;
};

}  // namespace

std::unique_ptr<TierIo> make_io_uring(int fd, TierIo::Done done, std::string& why_not) {
  auto io = std::make_unique<IoUring>(fd, std::move(done));
  const int code = io->open();
  if (code == 0) return io;
  why_not = fmt::format("io_uring_setup: {} (errno {})", std::strerror(code), code);
  return nullptr;
}

}  // namespace trireme::memory
