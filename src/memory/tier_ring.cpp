#include "trireme/base/error.hpp"
#include "trireme/memory/tier_file.hpp"

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <utility>

namespace trireme::memory {

namespace {

constexpr std::size_t kSlots = 3;

}  // namespace

// One walk over the records. Slot i % 3 belongs to record i from its read to the end of its write.
struct TierRing::Pass {
  TierRing& ring;
  const StreamOptions& options;
  std::array<std::optional<Ticket>, kSlots> in_flight{};

  std::span<std::byte> slot(std::size_t index) { return ring.slots_[index % kSlots].bytes(); }

  void finish(std::size_t index) {
    if (const auto ticket = std::exchange(in_flight[index % kSlots], std::nullopt)) {
      ring.file_.wait(*ticket);
    }
  }
  // Ends the write of three records ago, whose slot this one takes.
  void fetch(std::size_t index) {
    finish(index);
    if (options.reads) {
      in_flight[index % kSlots] = ring.file_.read(index, slot(index), options.read_stamp);
    }
  }
  void store(std::size_t index) {
    if (options.writes) {
      in_flight[index % kSlots] = ring.file_.write(index, slot(index), options.write_stamp);
    }
  }
};

TierRing::TierRing(TierFile& file) : file_(file) {
  for (HostBuffer& slot : slots_) {
    slot = HostBuffer(Bytes(static_cast<std::int64_t>(file.record_bytes())),
                      fmt::format("a slot for the {}", file.label()));
  }
}

TierRing::~TierRing() = default;

void TierRing::stream(std::size_t first, std::size_t last, const StreamOptions& options,
                      const Update& update) {
  Pass pass{*this, options};
  try {
    if (first < last) pass.fetch(first);
    for (std::size_t index = first; index < last; ++index) {
      if (index + 1 < last) pass.fetch(index + 1);
      if (options.reads) pass.finish(index);
      update(index, pass.slot(index).subspan(kRecordHeader));
      pass.store(index);
    }
    for (std::size_t index = first; index < last && index < first + kSlots; ++index) {
      pass.finish(index);
    }
  } catch (...) {
    // Nothing may move into or out of the slots when they are used again. Where the disk does not
    // even answer, they are left to it.
    if (!file_.settle()) {
      for (HostBuffer& slot : slots_) file_.keep(std::move(slot));
    }
    throw;
  }
}

Bytes TierRing::size() const {
  return Bytes(static_cast<std::int64_t>(kSlots * file_.record_bytes()));
}

}  // namespace trireme::memory
