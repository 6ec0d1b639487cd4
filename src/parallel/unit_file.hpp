// Bytes of every unit on local disk, in records that are checked when they are read. Private to the
// room.
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/memory/host_buffer.hpp"
#include "trireme/memory/tier_file.hpp"
#include "trireme/parallel/disk.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::parallel {

void add(memory::TierStats& total, const memory::TierStats& more);
memory::TierFileOptions tier_options(const DiskOptions& disk, std::string label,
                                     std::size_t payload, std::size_t num_records);

class UnitFile {
 public:
  // sizes[u] = most bytes of unit u; units of 0 bytes take no room.
  UnitFile(const DiskOptions& disk, const std::string& label, std::vector<std::size_t> sizes);

  // Replaces a unit's bytes; at most its size.
  void write(std::size_t unit, std::span<const std::byte> bytes);
  // Reads the first bytes of what write() was last given for the unit.
  void read(std::size_t unit, std::span<std::byte> bytes);
  // The same in two parts, with the disk at work between them. One read at a time.
  void begin_read(std::size_t unit);
  void end_read(std::span<std::byte> bytes);

  Bytes disk_bytes() const;
  Bytes memory() const;
  memory::TierStats take_stats() { return file_->take_stats(); }

 private:
  std::size_t num_records(std::size_t bytes) const { return (bytes + payload_ - 1) / payload_; }
  std::span<std::byte> ahead(std::size_t record) const;

  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> first_;       // record, by unit
  std::vector<std::uint64_t> versions_;  // by unit: the stamp of its records; 0: never written
  std::size_t payload_ = 0;
  std::unique_ptr<memory::TierFile> file_;
  std::unique_ptr<memory::TierRing> ring_;
  memory::HostBuffer ahead_;  // records that are read ahead
  std::vector<memory::Ticket> tickets_;
};

}  // namespace trireme::parallel
