#include "ckpt/direct_writer.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace trireme::ckpt {

namespace {

struct Request {
  std::size_t slot;
  std::size_t bytes;
  std::uint64_t offset;
};

// The thread that writes. A slot is free, being filled by the caller, or queued here.
class SlotWriter {
 public:
  SlotWriter(const Io& io, StagingRing& ring, const std::filesystem::path& path)
      : io_(io), ring_(ring), path_(path), file_(io.open_direct(path, direct_)) {
    for (std::size_t slot = 0; slot < StagingRing::kSlots; ++slot) free_.push_back(slot);
    thread_ = std::jthread([this] { run(); });
  }
  ~SlotWriter() { stop(); }
  SlotWriter(const SlotWriter&) = delete;
  SlotWriter& operator=(const SlotWriter&) = delete;

  // Waits for a free slot; throws what the writing thread met. A disk that never answers is the one
  // wait here without a deadline: the other ranks' next collective has one, and names this rank.
  std::size_t take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !free_.empty() || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    const std::size_t slot = free_.front();
    free_.pop_front();
    return slot;
  }

  void submit(const Request& request) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(request);
    }
    changed_.notify_all();
  }

  // Writes what is queued and makes it durable. Returns whether the file system could.
  bool finish() {
    stop();
    if (failure_) std::rethrow_exception(failure_);
    return io_.sync("fsync", file_.get(), path_);
  }

  bool direct() const { return direct_; }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty() || ending_; });
      if (queue_.empty() || failure_) return;
      const Request request = queue_.front();
      queue_.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        io_.write("write", file_.get(), ring_.slot(request.slot).first(request.bytes),
                  request.offset, path_, direct_);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
      free_.push_back(request.slot);
      lock.unlock();
      changed_.notify_all();
      if (failure) return;
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  const Io& io_;
  StagingRing& ring_;
  const std::filesystem::path& path_;
  bool direct_ = false;
  FileDescriptor file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::size_t> free_;
  std::deque<Request> queue_;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::jthread thread_;
};

// Fills slots with segments that follow each other in the file, so that neighbours leave in one
// request.
class Packer {
 public:
  Packer(SlotWriter& writer, StagingRing& ring, const FileMap& map, std::vector<CrcPiece>& pieces)
      : writer_(writer), ring_(ring), map_(map), pieces_(pieces) {}

  void put(const Segment& segment) {
    if (segment.offset != next_) flush();
    for (std::uint64_t done = 0; done < segment.bytes;) {
      make_room(segment.offset + done);
      const std::size_t count =
          std::min<std::uint64_t>(segment.bytes - done, StagingRing::kSlotBytes - fill_);
      done += stage(map_, segment, done, ring_.slot(slot_).subspan(fill_, count), pieces_);
      fill_ += count;
      next_ += count;
    }
    if (segment.end() == map_.end(segment.tensor)) pad();
  }

  void flush() {
    if (fill_ > 0) writer_.submit({slot_, fill_, base_});
    fill_ = 0;
  }

 private:
  void make_room(std::uint64_t offset) {
    if (fill_ == StagingRing::kSlotBytes) flush();
    if (fill_ > 0) return;
    ensure(offset % kFileBlock == 0, "a request starts on a block border");
    slot_ = writer_.take();
    base_ = offset;
    next_ = offset;
  }

  // The next tensor starts on the next border, so the rest of the block is nobody's and may be
  // written.
  void pad() {
    const std::uint64_t count = align_up(next_) - next_;
    std::memset(ring_.slot(slot_).data() + fill_, 0, count);
    fill_ += count;
    next_ += count;
  }

  SlotWriter& writer_;
  StagingRing& ring_;
  const FileMap& map_;
  std::vector<CrcPiece>& pieces_;
  std::size_t slot_ = 0;
  std::size_t fill_ = 0;    // bytes in the slot
  std::uint64_t base_ = 0;  // its place in the file
  std::uint64_t next_ = 0;  // the place of the next byte
};

}  // namespace

Written write_segments(const Io& io, StagingRing& ring, const std::filesystem::path& path,
                       const FileMap& map, std::span<const Segment> segments) {
  Written written;
  SlotWriter writer(io, ring, path);
  Packer packer(writer, ring, map, written.pieces);
  for (const Segment& segment : segments) packer.put(segment);
  packer.flush();
  written.synced = writer.finish();
  written.direct = writer.direct();
  return written;
}

}  // namespace trireme::ckpt
