#include "parallel/unit_file.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/checksum.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace trireme::parallel {

namespace {

constexpr std::size_t kPayload = std::size_t{1} << 20;

}  // namespace

void add(memory::TierStats& total, const memory::TierStats& more) {
  total.read.value += more.read.value;
  total.written.value += more.written.value;
  total.stalled += more.stalled;
  total.busy += more.busy;
}

memory::TierFileOptions tier_options(const DiskOptions& disk, std::string label,
                                     std::size_t payload, std::size_t num_records) {
  memory::TierFileOptions options;
  options.folder = disk.folder;
  options.label = std::move(label);
  options.payload = payload;
  options.num_records = num_records;
  options.checksum = kernels::crc32c;
  options.timeout = disk.timeout;
  return options;
}

UnitFile::UnitFile(const DiskOptions& disk, const std::string& label,
                   std::vector<std::size_t> sizes)
    : sizes_(std::move(sizes)), versions_(sizes_.size(), 0) {
  const std::size_t largest = *std::ranges::max_element(sizes_);
  payload_ = std::clamp((largest + 4095) / 4096 * 4096, std::size_t{4096}, kPayload);
  std::size_t records = 0;
  for (const std::size_t size : sizes_) {
    first_.push_back(records);
    records += num_records(size);
  }
  file_ = std::make_unique<memory::TierFile>(
      tier_options(disk, label, payload_, std::max<std::size_t>(1, records)));
  ring_ = std::make_unique<memory::TierRing>(*file_);
  ahead_ = memory::HostBuffer(
      Bytes(static_cast<std::int64_t>(num_records(largest) * file_->record_bytes())), label);
}

void UnitFile::write(std::size_t unit, std::span<const std::byte> bytes) {
  ensure(bytes.size() <= sizes_[unit], "a unit's bytes fit its place on disk");
  memory::StreamOptions options;
  options.reads = false;
  options.write_stamp = ++versions_[unit];
  ring_->stream(first_[unit], first_[unit] + num_records(bytes.size()), options,
                [&](std::size_t record, std::span<std::byte> payload) {
                  const std::size_t at = (record - first_[unit]) * payload_;
                  const std::size_t size = std::min(payload_, bytes.size() - at);
                  std::memcpy(payload.data(), bytes.data() + at, size);
                  std::ranges::fill(payload.subspan(size), std::byte{0});
                });
}

void UnitFile::read(std::size_t unit, std::span<std::byte> bytes) {
  memory::StreamOptions options;
  options.writes = false;
  options.read_stamp = versions_[unit];
  ring_->stream(first_[unit], first_[unit] + num_records(bytes.size()), options,
                [&](std::size_t record, std::span<std::byte> payload) {
                  const std::size_t at = (record - first_[unit]) * payload_;
                  std::memcpy(bytes.data() + at, payload.data(),
                              std::min(payload_, bytes.size() - at));
                });
}

std::span<std::byte> UnitFile::ahead(std::size_t record) const {
  return ahead_.bytes().subspan(record * file_->record_bytes(), file_->record_bytes());
}

void UnitFile::begin_read(std::size_t unit) {
  ensure(tickets_.empty(), "one unit is read ahead at a time");
  for (std::size_t r = 0; r < num_records(sizes_[unit]); ++r)
    tickets_.push_back(file_->read(first_[unit] + r, ahead(r), versions_[unit]));
}

void UnitFile::end_read(std::span<std::byte> bytes) {
  for (std::size_t r = 0; r < tickets_.size(); ++r) {
    file_->wait(tickets_[r]);
    const std::size_t at = r * payload_;
    if (at >= bytes.size()) continue;
    std::memcpy(bytes.data() + at, ahead(r).data() + memory::kRecordHeader,
                std::min(payload_, bytes.size() - at));
  }
  tickets_.clear();
}

Bytes UnitFile::disk_bytes() const {
  return Bytes(static_cast<std::int64_t>(file_->num_records() * file_->record_bytes()));
}

Bytes UnitFile::memory() const {
  return Bytes(ring_->size().value + static_cast<std::int64_t>(ahead_.bytes().size()));
}

}  // namespace trireme::parallel
