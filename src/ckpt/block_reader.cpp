#include "ckpt/block_reader.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/format.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

namespace trireme::ckpt {

namespace {

constexpr std::size_t kSlots = 3;
constexpr std::uint64_t kSlotBytes = 8 * 1024 * 1024;

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
                       end - requests.back().begin <= kSlotBytes;
    if (!joins) requests.push_back({i, i, places[i].offset, 0});
    requests.back().last = i + 1;
    requests.back().end = end;
  }
  return requests;
}

// Page-aligned and touched once.
class Slots {
 public:
  explicit Slots(std::size_t count) : bytes_(count * kSlotBytes) {
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      throw Error(ErrorKind::kOutOfMemory,
                  fmt::format("no {} to read a checkpoint",
                              human(Bytes(static_cast<std::int64_t>(bytes_)))));
    }
    memory_ = static_cast<std::byte*>(memory);
  }
  ~Slots() { ::munmap(memory_, bytes_); }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  std::byte* slot(std::size_t index) const { return memory_ + index % kSlots * kSlotBytes; }

 private:
  std::size_t bytes_;
  std::byte* memory_ = nullptr;
};

class Pipeline {
 public:
  Pipeline(int file, int direct, std::span<const Request> requests)
      : file_(file),
        direct_(direct),
        requests_(requests),
        slots_(std::min(kSlots, requests.size())),
        good_(requests.size()) {}

  void run(std::span<const Place> places, const BlockReader::Use& use) {
    // One request is read here: a thread would cost more than it gains.
    std::optional<std::jthread> thread;
    if (requests_.size() > 1)
      thread.emplace([this](const std::stop_token& stop) { read_all(stop); });
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      if (thread) {
        wait([&] { return filled_ > r; });
      } else {
        good_[r] = fill(r);
      }
      for (std::size_t i = requests_[r].first; i < requests_[r].last; ++i) {
        const std::uint64_t at = places[i].offset - requests_[r].begin;
        use(i, good_[r] ? std::span<const std::byte>(slots_.slot(r) + at, places[i].bytes)
                        : std::span<const std::byte>());
      }
      const std::lock_guard lock(mutex_);
      ++used_;
      changed_.notify_all();
    }
  }

 private:
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
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      wait([&] { return r < used_ + kSlots || stop.stop_requested(); });
      if (stop.stop_requested()) return;
      const bool good = fill(r);
      const std::lock_guard lock(mutex_);
      good_[r] = good;
      filled_ = r + 1;
      changed_.notify_all();
    }
  }

  bool fill(std::size_t r) {
    const Request& request = requests_[r];
    for (std::uint64_t at = request.begin; at < request.end;) {
      const int fd = direct_ >= 0 ? direct_ : file_;
      const ssize_t got = ::pread(fd, slots_.slot(r) + (at - request.begin), request.end - at,
                                  static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EINVAL && direct_ >= 0) {
        direct_ = -1;  // opened, but not read that way
        continue;
      }
      if (got <= 0) return false;
      at += static_cast<std::uint64_t>(got);
      // What follows a short direct read need not start on a border.
      if (at < request.end && at % kFileBlock != 0) at = align_down(at);
    }
    return true;
  }

  int file_;
  int direct_;  // below 0: none
  std::span<const Request> requests_;
  Slots slots_;
  std::vector<char> good_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t filled_ = 0;  // requests that were read
  std::size_t used_ = 0;    // requests whose slot is free again
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
