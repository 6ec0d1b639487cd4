#include "memory/transfers.hpp"

#include "trireme/base/error.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace trireme::memory {

namespace {

constexpr std::size_t kPage = 4096;
// Large enough for a disk's full rate, small enough that several are in flight for one record.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
// Attempts without progress after which a piece has failed.
constexpr int kTries = 8;

}  // namespace

Transfers::Transfers(const TierFileOptions& options, ScratchFile file)
    : options_(options), file_(std::move(file)) {
  const auto done = [this](Attempt& attempt, std::ptrdiff_t moved) {
    const std::scoped_lock lock(mutex_);
    attempted(static_cast<Piece&>(attempt), moved);
    start_waiting();
  };
  std::string why_not;
  if (options.engine != TierEngine::kThreads) io_ = make_io_uring(file_.fd.get(), done, why_not);
  if (!io_ && options.engine == TierEngine::kIoUring) {
    throw Error(ErrorKind::kEnvironment, "io_uring cannot be used here: " + why_not,
                "build with liburing, allow io_uring in the container, or let trireme choose");
  }
  if (!io_) io_ = make_io_threads(file_.fd.get(), done);
}

std::uint64_t Transfers::begin(bool write, std::span<std::byte> bytes, std::uint64_t offset) {
  const std::scoped_lock lock(mutex_);
  Transfer& transfer = transfers_[++last_id_];
  for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    Piece& piece = transfer.pieces.emplace_back();
    piece.write = write;
    piece.data = bytes.data() + at;
    piece.left = std::min(kPieceBytes, bytes.size() - at);
    piece.offset = offset + at;
    piece.transfer = &transfer;
    waiting_.push_back(&piece);
  }
  transfer.pending = transfer.pieces.size();
  start_waiting();
  return last_id_;
}

std::optional<Outcome> Transfers::wait(std::uint64_t id, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto found = transfers_.find(id);
  ensure(found != transfers_.end(), "a transfer is waited for once");
  const Transfer& transfer = found->second;
  const auto start = Clock::now();
  const bool ended =
      changed_.wait_until(lock, deadline.at(), [&transfer] { return transfer.pending == 0; });
  stats_.stalled += seconds_since(start);
  if (!ended) return std::nullopt;
  const Outcome outcome = transfer.outcome;
  transfers_.erase(found);
  return outcome;
}

bool Transfers::settle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool ended = changed_.wait_until(lock, deadline.at(), [this] {
    return std::all_of(transfers_.begin(), transfers_.end(),
                       [](const auto& entry) { return entry.second.pending == 0; });
  });
  if (ended) transfers_.clear();
  return ended;
}

TierStats Transfers::take_stats() {
  const std::scoped_lock lock(mutex_);
  if (in_flight_ > 0) {
    stats_.busy += seconds_since(busy_since_);
    busy_since_ = Clock::now();
  }
  return std::exchange(stats_, {});
}

std::vector<std::string> Transfers::notes() {
  const std::scoped_lock lock(mutex_);
  return file_.notes;
}

void Transfers::start_waiting() {
  while (in_flight_ < kTierDepth && !waiting_.empty()) {
    Piece& piece = *waiting_.front();
    waiting_.pop_front();
    if (in_flight_++ == 0) busy_since_ = Clock::now();
    start(piece);
  }
}

void Transfers::start(Piece& piece) {
  piece.direct = file_.direct;
  piece.size = piece.left;
  const int fault = options_.hook ? options_.hook(piece.write ? "write" : "read") : 0;
  if (fault == kNoAnswer) return;
  if (fault > 0) return attempted(piece, -fault);
  if (fault == kShortTransfer) {
    piece.size = std::max(piece.size / 2 / kPage * kPage, std::min(piece.size, kPage));
  }
  if (const int code = io_->start(piece); code < 0) attempted(piece, code);
}

void Transfers::attempted(Piece& piece, std::ptrdiff_t moved) {
  if (moved == -EINVAL && piece.direct) {
    leave_direct(file_, options_);
    return start(piece);
  }
  // Direct transfers must stay on page borders, so a torn page is moved again.
  std::size_t done = moved > 0 ? static_cast<std::size_t>(moved) : 0;
  if (piece.direct && done < piece.left) done = done / kPage * kPage;
  piece.data += done;
  piece.offset += done;
  piece.left -= done;
  Bytes& counter = piece.write ? stats_.written : stats_.read;
  counter.value += static_cast<std::int64_t>(done);
  if (piece.left == 0) return ended(piece);

  piece.tries = done == 0 ? piece.tries + 1 : 0;
  const bool worth_another = moved >= 0 || moved == -EINTR || moved == -EAGAIN;
  if (worth_another && piece.tries < kTries) return start(piece);
  Outcome& outcome = piece.transfer->outcome;
  if (outcome.error == 0) outcome = {moved < 0 ? static_cast<int>(-moved) : EIO, piece.offset};
  ended(piece);
}

void Transfers::ended(Piece& piece) {
  if (--in_flight_ == 0) stats_.busy += seconds_since(busy_since_);
  if (--piece.transfer->pending == 0) changed_.notify_all();
}

}  // namespace trireme::memory
