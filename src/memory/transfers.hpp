// Large reads and writes of one file, cut into pieces and kept in flight by an engine's thread:
// short and interrupted ones are resumed, failures kept until somebody waits. Private to the room.
#pragma once

#include "trireme/base/deadline.hpp"
#include "trireme/memory/tier_file.hpp"

#include "memory/scratch_file.hpp"
#include "memory/tier_io.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace trireme::memory {

// How a transfer ended.
struct Outcome {
  int error = 0;             // an errno
  std::uint64_t offset = 0;  // of the failure, in the file
};

class Transfers {
 public:
  // Throws Environment when the engine asked for is not there.
  Transfers(const TierFileOptions& options, ScratchFile file);
  // Nothing is in flight.
  ~Transfers() = default;

  std::uint64_t begin(bool write, std::span<std::byte> bytes, std::uint64_t offset);
  // Ends a transfer; nothing when the deadline passes first, and then it goes on.
  std::optional<Outcome> wait(std::uint64_t id, Deadline deadline);
  // Ends all transfers whatever became of them; false when the deadline passes first.
  bool settle(Deadline deadline);

  TierStats take_stats();
  std::string_view engine() const { return io_->name(); }
  std::vector<std::string> notes();

 private:
  struct Transfer;
  struct Piece : Attempt {
    Transfer* transfer = nullptr;
    std::size_t left = 0;
    int tries = 0;        // without progress
    bool direct = false;  // when it was started
  };
  struct Transfer {
    std::deque<Piece> pieces;
    std::size_t pending = 0;
    Outcome outcome;
  };

  // All below with the mutex held.
  void start_waiting();
  void start(Piece& piece);
  void attempted(Piece& piece, std::ptrdiff_t moved);
  void ended(Piece& piece);

  const TierFileOptions options_;
  ScratchFile file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Transfer> transfers_;
  std::uint64_t last_id_ = 0;
  std::deque<Piece*> waiting_;
  unsigned in_flight_ = 0;
  Clock::time_point busy_since_;
  TierStats stats_;
  std::unique_ptr<TierIo> io_;  // last: its threads use all of the above
};

}  // namespace trireme::memory
