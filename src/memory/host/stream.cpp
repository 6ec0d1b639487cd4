// A stream of the host device: a queue of calls and a thread that makes them one after another. A
// moment in it is a number of calls. Destroying a stream waits for what is queued, as its memory may
// go next.
#include "memory/host/stream.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::memory {

namespace {

constexpr std::chrono::microseconds kTurn{100};  // between two calls of a waiter's `idle`

class HostQueue {
 public:
  explicit HostQueue(HostTiming timing) : wanted_(timing == HostTiming::kEarly ? kAll : 0) {}

  void add(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    ++num_queued_;
    changed_.notify_all();
  }

  // The moment after all that is queued.
  std::uint64_t now() const {
    const std::scoped_lock lock(mutex_);
    return num_queued_;
  }

  bool reached(std::uint64_t moment) const {
    const std::scoped_lock lock(mutex_);
    return num_done_ >= moment;
  }

  void push(std::uint64_t moment) {
    const std::scoped_lock lock(mutex_);
    if (moment > wanted_) want(moment);
  }

  // Waits for a moment; throws what the work before it has thrown. Returns false at `until`.
  bool wait(std::uint64_t moment, Clock::time_point until) {
    std::unique_lock lock(mutex_);
    want(moment);
    const bool ended =
        changed_.wait_until(lock, until, [&] { return num_done_ >= moment || failure_; });
    if (num_done_ < moment && failure_) std::rethrow_exception(failure_);
    return ended;
  }
  void wait(std::uint64_t moment) {
    std::unique_lock lock(mutex_);
    want(moment);
    changed_.wait(lock, [&] { return num_done_ >= moment || failure_; });
    if (num_done_ < moment) std::rethrow_exception(failure_);
  }

  // The stream's thread: makes calls until the queue is closed and empty.
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || (!tasks_.empty() && num_done_ < wanted_); });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        if (!failed_) task();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure) {
        failure_ = failure;
        failed_ = true;
      }
      if (!failed_) ++num_done_;
      changed_.notify_all();
    }
  }

  void close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

  void want(std::uint64_t moment) {
    wanted_ = std::max(wanted_, moment);
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t num_queued_ = 0;
  std::uint64_t num_done_ = 0;
  std::uint64_t wanted_;  // how many calls may be made
  bool closed_ = false;
  bool failed_ = false;  // of the stream's thread alone
  std::exception_ptr failure_;
};

class HostEvent final : public DeviceEvent {
 public:
  explicit HostEvent(std::shared_ptr<HostQueue> queue)
      : queue_(std::move(queue)), moment_(queue_->now()) {}
  bool reached() override { return queue_->reached(moment_); }
  void push() override { queue_->push(moment_); }
  void wait() { queue_->wait(moment_); }

 private:
  std::shared_ptr<HostQueue> queue_;  // shared: an event may outlive its stream
  std::uint64_t moment_;
};

class HostStream final : public DeviceStream {
 public:
  HostStream(std::string label, HostTiming timing)
      : label_(std::move(label)),
        queue_(std::make_shared<HostQueue>(timing)),
        thread_([queue = queue_] { queue->serve(); }) {}
  ~HostStream() override {
    queue_->close();
    thread_.join();
  }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  std::shared_ptr<DeviceEvent> record() override { return std::make_shared<HostEvent>(queue_); }

  void after(const std::shared_ptr<DeviceEvent>& event) override {
    auto host_event = std::dynamic_pointer_cast<HostEvent>(event);
    ensure(host_event != nullptr, "an event is of the stream's device");
    queue_->add([host_event] { host_event->wait(); });
  }

  void run(std::function<void()> work) override { queue_->add(std::move(work)); }

  void wait(std::string_view what, Deadline deadline, const std::function<void()>& idle) override {
    const std::uint64_t moment = queue_->now();
    const auto turn = [&] { return idle ? Clock::now() + kTurn : deadline.at(); };
    while (!queue_->wait(moment, turn())) {
      if (deadline.expired()) {
        throw Error(ErrorKind::kTimeout,
                    fmt::format("'{}' did not end in time on stream {}", what, label_),
                    "a rank that is stopped or dead keeps the others' collectives from ending");
      }
      if (idle) idle();
    }
  }

  void* native() const override { return nullptr; }

 private:
  std::string label_;
  std::shared_ptr<HostQueue> queue_;  // shared with the thread and with events
  std::thread thread_;
};

}  // namespace

std::shared_ptr<DeviceStream> make_host_stream(std::string label, HostTiming timing) {
  return std::make_shared<HostStream>(std::move(label), timing);
}

}  // namespace trireme::memory
