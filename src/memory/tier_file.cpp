#include "trireme/memory/tier_file.hpp"

#include "trireme/base/deadline.hpp"
#include "trireme/base/error.hpp"

#include "memory/record.hpp"
#include "memory/scratch_file.hpp"
#include "memory/transfers.hpp"
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <utility>

namespace trireme::memory {

namespace {

constexpr std::size_t kPage = 4096;
// After a device has failed to answer in time once, nobody waits for it as long again.
constexpr std::chrono::duration<double> kGrace{1};

const TierFileOptions& checked(const TierFileOptions& options) {
  ensure(options.checksum != nullptr, "a tier file has a checksum function");
  ensure(options.payload > 0 && options.payload % kPage == 0,
         "a record's payload is a multiple of 4096 bytes");
  return options;
}

// What is in flight, for the check and the messages at its end.
struct Started {
  bool write = false;
  std::span<std::byte> record;
  RecordName name;
};

}  // namespace

struct TierFile::Impl {
  explicit Impl(const TierFileOptions& given)
      : options(checked(given)),
        record_bytes(kRecordHeader + given.payload),
        transfers(given, make_scratch_file(given, record_bytes * given.num_records)) {}

  Ticket begin(bool write, std::span<std::byte> record, const RecordName& name);
  // "record 3 of the optimizer state of rank 0 (at byte 12288 of its file in /scratch)"
  std::string describe(const RecordName& name) const;
  [[noreturn]] void throw_failure(const Started& started, const Outcome& outcome) const;

  const TierFileOptions options;
  const std::size_t record_bytes;
  bool answers = true;  // the device ends what it is asked for
  std::map<std::uint64_t, Started> started;
  std::vector<HostBuffer> kept;
  Transfers transfers;
};

Ticket TierFile::Impl::begin(bool write, std::span<std::byte> record, const RecordName& name) {
  ensure(record.size() == record_bytes && name.index < options.num_records,
         "a transfer is of one whole record of the file");
  ensure(reinterpret_cast<std::uintptr_t>(record.data()) % kPage == 0, "a record lies on pages");
  const std::uint64_t id = transfers.begin(write, record, name.index * record_bytes);
  started[id] = {write, record, name};
  return {id};
}

std::string TierFile::Impl::describe(const RecordName& name) const {
  return fmt::format("record {} of the {} (at byte {} of its file in {})", name.index,
                     options.label, name.index * record_bytes, options.folder.string());
}

void TierFile::Impl::throw_failure(const Started& which, const Outcome& outcome) const {
  const char* const verb = which.write ? "write" : "read";
  Error error(
      ErrorKind::kIo,
      fmt::format("cannot {} {}: failed at byte {}: {} (errno {})", verb, describe(which.name),
                  outcome.offset, std::strerror(outcome.error), outcome.error),
      outcome.error == ENOSPC || outcome.error == EDQUOT
          ? "free some space, or point the offload folder at another local disk"
          : "the kernel's log (dmesg) may say what the disk's trouble is; another node has "
            "another disk");
  throw error;
}

TierFile::TierFile(const TierFileOptions& options) : impl_(std::make_unique<Impl>(options)) {}

TierFile::~TierFile() {
  // Threads that a dead disk holds use the memory behind impl_: it is left to them.
  if (!settle()) static_cast<void>(impl_.release());
}

std::size_t TierFile::record_bytes() const { return impl_->record_bytes; }
std::size_t TierFile::num_records() const { return impl_->options.num_records; }
const std::string& TierFile::label() const { return impl_->options.label; }
std::string_view TierFile::engine() const { return impl_->transfers.engine(); }
std::vector<std::string> TierFile::notes() const { return impl_->transfers.notes(); }
TierStats TierFile::take_stats() { return impl_->transfers.take_stats(); }

Ticket TierFile::write(std::size_t index, std::span<std::byte> record, std::uint64_t stamp) {
  const RecordName name{index, stamp};
  seal(record, name, impl_->options.checksum);
  return impl_->begin(true, record, name);
}

Ticket TierFile::read(std::size_t index, std::span<std::byte> record, std::uint64_t stamp) {
  return impl_->begin(false, record, {index, stamp});
}

void TierFile::wait(Ticket ticket) {
  const auto found = impl_->started.find(ticket.id);
  ensure(found != impl_->started.end(), "a ticket is waited for once");
  const Started which = found->second;
  const auto wait = impl_->answers ? impl_->options.timeout : kGrace;
  const auto outcome = impl_->transfers.wait(ticket.id, Deadline::after(wait));
  if (!outcome) {
    impl_->answers = false;
    throw Error(ErrorKind::kTimeout,
                fmt::format("waited {:g} s for the disk to {} {}", wait.count(),
                            which.write ? "write" : "read", impl_->describe(which.name)),
                "the disk does not answer; `dmesg` and `iostat -x 1` on the node say more");
  }
  impl_->started.erase(found);
  if (outcome->error != 0) impl_->throw_failure(which, *outcome);
  if (which.write) return;
  const std::string damage = find_damage(which.record, which.name, impl_->options.checksum);
  if (damage.empty()) return;
  throw Error(ErrorKind::kCorrupt, fmt::format("{}: {}", impl_->describe(which.name), damage),
              "resume from the last checkpoint, on another node or disk if it happens again");
}

void TierFile::keep(HostBuffer memory) { impl_->kept.push_back(std::move(memory)); }

bool TierFile::settle() noexcept {
  try {
    const auto wait = impl_->answers ? impl_->options.timeout : kGrace;
    impl_->answers = impl_->transfers.settle(Deadline::after(wait));
    impl_->started.clear();
    return impl_->answers;
  } catch (...) {
    return false;
  }
}

}  // namespace trireme::memory
