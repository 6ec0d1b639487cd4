#include "ckpt/block_reader.hpp"

#include "ckpt/format.hpp"
#include "ckpt/slots.hpp"
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace trireme::ckpt {

namespace {

constexpr std::size_t kSlots = 3;
// Two, so that the disk has the next request before the processor comes round to ask for it.
constexpr std::size_t kThreads = 2;

// Neighbouring places that are read at once: places [first, last), bytes [begin, end) of the file.
struct Request {
  std::size_t first = 0;
  std::size_t last = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::vector<Request> requests_for(std::span<const Place> places, std::uint64_t file_bytes) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::uint64_t end = std::min(align_up(places[i].offset + places[i].bytes), file_bytes);
    const bool joins = !requests.empty() && requests.back().end == places[i].offset &&
                       end - requests.back().begin <= Slots::kSlotBytes;
    if (!joins) requests.push_back({i, i, places[i].offset, 0});
    requests.back().last = i + 1;
    requests.back().end = end;
  }
  return requests;
}

class Pipeline {
 public:
  Pipeline(int file, int direct, std::span<const Request> requests)
      : file_(file),
        direct_(direct),
        requests_(requests),
        slots_(std::min(kSlots, requests.size()), "reading a checkpoint"),
        state_(requests.size(), State::kWaiting) {}

  void run(std::span<const Place> places, const BlockReader::Use& use) {
    // One request is read here: a thread would cost more than it gains.
    std::vector<std::jthread> threads;
    const std::size_t helpers = requests_.size() > 1 ? kThreads : 0;
    while (threads.size() < helpers)
      threads.emplace_back([this](const std::stop_token& stop) { read_all(stop); });
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      if (threads.empty()) {
        state_[r] = fill(r);
      } else {
        wait([&] { return state_[r] != State::kWaiting; });
      }
      for (std::size_t i = requests_[r].first; i < requests_[r].last; ++i) {
        const std::uint64_t at = places[i].offset - requests_[r].begin;
        use(i, state_[r] == State::kRead
                   ? std::span<const std::byte>(slot(r).subspan(at, places[i].bytes))
                   : std::span<const std::byte>());
      }
      const std::lock_guard lock(mutex_);
      ++used_;
      changed_.notify_all();
    }
  }

 private:
  enum class State { kWaiting, kRead, kFailed };

  std::span<std::byte> slot(std::size_t request) const { return slots_[request % kSlots]; }

  template <class Condition>
  void wait(Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, condition);
  }

  void read_all(const std::stop_token& stop) {
    const std::stop_callback wake(stop, [this] {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    });
    for (std::size_t r = next_++; r < requests_.size(); r = next_++) {
      wait([&] { return r < used_ + kSlots || stop.stop_requested(); });
      if (stop.stop_requested()) return;
      const State state = fill(r);
      const std::lock_guard lock(mutex_);
      state_[r] = state;
      changed_.notify_all();
    }
  }

  State fill(std::size_t r) {
    const Request& request = requests_[r];
    for (std::uint64_t at = request.begin; at < request.end;) {
      const int direct = direct_;
      const int fd = direct >= 0 ? direct : file_;
      const ssize_t got = ::pread(fd, slot(r).data() + (at - request.begin), request.end - at,
                                  static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EINVAL && direct >= 0) {
        direct_ = -1;  // opened, but not read that way
        continue;
      }
      if (got <= 0) return State::kFailed;
      const std::uint64_t stop = at + static_cast<std::uint64_t>(got);
      // What follows a short direct read starts on a border again; without a whole block there is no
      // progress: the file ends here.
      const std::uint64_t next = stop < request.end ? align_down(stop) : stop;
      if (next == at) return State::kFailed;
      at = next;
    }
    return State::kRead;
  }

  int file_;
  std::atomic<int> direct_;  // below 0: none
  std::span<const Request> requests_;
  Slots slots_;
  std::vector<State> state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::size_t> next_ = 0;  // request that a thread takes
  std::size_t used_ = 0;               // requests whose slot is free again
};

}  // namespace

void BlockReader::each(std::span<const Place> places, PageCache cache, const Use& use) const {
  const std::vector<Request> requests = requests_for(places, file_bytes_);
  if (requests.empty()) return;
  FileDescriptor direct;
  if (cache == PageCache::kPast)
    direct = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  Pipeline(file_, direct ? direct.get() : -1, requests).run(places, use);
}

}  // namespace trireme::ckpt
