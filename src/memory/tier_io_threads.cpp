// Attempts through a few threads that read and write: for kernels and containers without io_uring.
#include "memory/tier_io.hpp"
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::memory {

namespace {

class IoThreads final : public TierIo {
 public:
  IoThreads(int fd, Done done) : fd_(fd), done_(std::move(done)) {
    for (std::thread& thread : threads_) thread = std::thread([this] { serve(); });
  }

  ~IoThreads() override {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int start(Attempt& attempt) override {
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(&attempt);
    }
    changed_.notify_one();
    return 0;
  }

  std::string_view name() const override { return "threads"; }

 private:
  Attempt* next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
    if (queue_.empty()) return nullptr;
    Attempt* const attempt = queue_.front();
    queue_.pop_front();
    return attempt;
  }

  void serve() {
    while (Attempt* const attempt = next()) {
      const auto offset = static_cast<off_t>(attempt->offset);
      const auto moved = attempt->write ? ::pwrite(fd_, attempt->data, attempt->size, offset)
                                        : ::pread(fd_, attempt->data, attempt->size, offset);
      done_(*attempt, moved < 0 ? -errno : moved);
    }
  }

  int fd_;
  Done done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Attempt*> queue_;
  bool ended_ = false;
  std::array<std::thread, 4> threads_;
};

}  // namespace

std::unique_ptr<TierIo> make_io_threads(int fd, TierIo::Done done) {
  return std::make_unique<IoThreads>(fd, std::move(done));
}

}  // namespace trireme::memory
