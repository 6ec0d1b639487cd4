// The slowest tier: a process's state in records on local disk, moved past the page cache. Every
// record carries its index, a stamp and a CRC32C that are checked when it is read, so that a
// flipped bit, a lost write or bytes of an earlier step are named and never trained on. Nothing here
// outlives the process: the file has no name, and is no checkpoint.
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/memory/host_buffer.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::memory {

// The first bytes of a record: what it is, and checksums of itself and of the payload behind it.
inline constexpr std::size_t kRecordHeader = 4096;

// kernels::crc32c; this room stands above kernels, so it is handed in.
using ChecksumFunction = std::uint32_t (*)(std::span<const std::byte> bytes,
                                           std::uint32_t previous);

// Tests only. Called before every system call: "create", "allocate", "read", "write". Returns 0 to
// go on, an errno that the call shall fail with, kShortTransfer to move less than asked, or
// kNoAnswer for a device that never ends the call. May be called from a thread of the file's own.
using TierFaultHook = std::function<int(std::string_view call)>;
inline constexpr int kShortTransfer = -1;
inline constexpr int kNoAnswer = -2;

// How transfers reach the kernel. kBest is io_uring where the build and the kernel have it.
enum class TierEngine { kBest, kIoUring, kThreads };

struct TierFileOptions {
  std::filesystem::path folder;  // on a local disk
  std::string label;             // for messages: "optimizer state of rank 3"
  std::size_t payload = 0;       // bytes a record, a multiple of 4096
  std::size_t num_records = 0;
  ChecksumFunction checksum = nullptr;         // required
  std::chrono::duration<double> timeout{600};  // the longest that a wait may take
  TierEngine engine = TierEngine::kBest;
  TierFaultHook hook = {};
};

// A transfer in flight; waited for exactly once.
struct Ticket {
  std::uint64_t id = 0;
};

struct TierStats {
  Bytes read;
  Bytes written;
  double stalled = 0;  // seconds that callers spent in wait()
  double busy = 0;     // seconds with at least one transfer in flight
};

// One thread calls; transfers go on meanwhile.
class TierFile {
 public:
  // Reserves all of it on the disk. Throws Io naming folder, need and free space; Environment when
  // a particular engine is asked for and cannot be had.
  explicit TierFile(const TierFileOptions& options);
  // Waits for what is in flight, at most as long as the timeout.
  ~TierFile();
  TierFile(const TierFile&) = delete;
  TierFile& operator=(const TierFile&) = delete;

  std::size_t record_bytes() const;  // header and payload
  std::size_t num_records() const;
  const std::string& label() const;

  // Begin a transfer. `record` has record_bytes() bytes from a 4096-aligned address, the payload
  // behind the header, and stays in place and untouched until it was waited for. write() fills in
  // the header.
  Ticket write(std::size_t index, std::span<std::byte> record, std::uint64_t stamp);
  Ticket read(std::size_t index, std::span<std::byte> record, std::uint64_t stamp);
  // Ends it. Throws Io (path, offset, errno), Timeout, or Corrupt when what was read is not record
  // `index` with `stamp`, or is damaged.
  void wait(Ticket ticket);

  // Returns what was moved and how long it took since the last call.
  TierStats take_stats();
  // "io_uring" or "threads".
  std::string_view engine() const;
  // What this disk cannot do ("/scratch has no direct I/O: ..."), for the log.
  std::vector<std::string> notes() const;

 private:
  friend class TierRing;
  // Waits until nothing is in flight and forgets how it ended; false when the disk does not answer.
  bool settle() noexcept;
  // Takes over memory that a disk without an answer may still use.
  void keep(HostBuffer memory);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct StreamOptions {
  std::uint64_t read_stamp = 0;   // what the records must carry
  std::uint64_t write_stamp = 0;  // what they carry afterwards
  bool reads = true;              // false: `update` fills records from nothing
  bool writes = true;             // false: `update` only looks
};

// Streams records through three slots of memory: while one is updated, the next is read and the
// one before is written.
class TierRing {
 public:
  using Update = std::function<void(std::size_t index, std::span<std::byte> payload)>;

  explicit TierRing(TierFile& file);
  ~TierRing();
  TierRing(const TierRing&) = delete;
  TierRing& operator=(const TierRing&) = delete;

  // Calls `update` for each record from `first` up to `last`, in order. When it returns, all are
  // written. Throws what TierFile::wait and `update` throw, with nothing left in flight; records
  // before the failing one may carry the new stamp by then.
  void stream(std::size_t first, std::size_t last, const StreamOptions& options,
              const Update& update);

  // The memory of the slots.
  Bytes size() const;

 private:
  struct Pass;
  TierFile& file_;
  std::array<HostBuffer, 3> slots_;
};

}  // namespace trireme::memory
