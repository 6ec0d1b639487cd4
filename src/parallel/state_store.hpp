// Master weights and moments of what this rank holds of every unit, in memory or on disk. Private
// to the room.
#pragma once

#include "trireme/memory/host_buffer.hpp"
#include "trireme/memory/tier_file.hpp"
#include "trireme/parallel/disk.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/layout.hpp"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace trireme::parallel {

// A run of one unit's state, inside one part (Layout::part).
struct StateChunk {
  std::size_t unit = 0;
  Range range;  // in the unit
  std::span<float> master;
  Moments moments{};  // null in units that do not train
};

class StateStore {
 public:
  using Visit = std::function<void(const StateChunk&)>;

  StateStore(const Layout& layout, Rank me, int num_moments, at::ScalarType moments);
  virtual ~StateStore() = default;

  // The part of a unit that this rank holds.
  Range held(std::size_t unit) const { return layout_.shard(unit, me_); }
  // Calls `visit` once for every element that is held. What it writes is kept if `writes`.
  virtual void for_each(const Visit& visit, Access access) = 0;
  // Where a range of a unit's state lies; null pointers when it is on disk.
  virtual StateChunk at(std::size_t unit, Range range) const = 0;
  // Copies a range of one array: 0 is master, 1 + m moment m.
  virtual void read(std::size_t unit, Range range, int array, std::span<std::byte> out) = 0;
  virtual void write(std::size_t unit, Range range, int array, std::span<const std::byte> in) = 0;

  // In memory, and on disk.
  virtual Bytes master_bytes() const = 0;
  virtual Bytes moment_bytes() const = 0;
  virtual Bytes disk_bytes() const { return Bytes(0); }
  virtual Bytes transient_bytes() const { return Bytes(0); }
  virtual memory::TierStats take_stats() { return {}; }

 protected:
  std::size_t element_size(int array) const {
    return array == 0 ? sizeof(float) : c10::elementSize(type_);
  }
  // Parts of a unit that are held, in order.
  std::vector<Range> parts(std::size_t unit) const;

  const Layout& layout_;
  Rank me_;
  int num_moments_;
  at::ScalarType type_;
};

class HostState : public StateStore {
 public:
  HostState(const Layout& layout, Rank me, int num_moments, at::ScalarType moments);

  void for_each(const Visit& visit, Access access) override;
  StateChunk at(std::size_t unit, Range range) const override;
  void read(std::size_t unit, Range range, int array, std::span<std::byte> out) override;
  void write(std::size_t unit, Range range, int array, std::span<const std::byte> in) override;
  Bytes master_bytes() const override;
  Bytes moment_bytes() const override;

 private:
  std::byte* array_at(std::size_t unit, Range range, int array) const;

  std::vector<std::int64_t> master_at_;  // by unit, in elements
  std::vector<std::int64_t> moments_at_;
  memory::HostBuffer master_;
  std::vector<memory::HostBuffer> moments_;
};

// On disk, in records of a run of elements each: master first, then the moments. They pass through
// a ring of three; frozen units, which have no moments, have a file of their own.
class DiskState : public StateStore {
 public:
  DiskState(const Layout& layout, Rank me, int num_moments, at::ScalarType moments,
            const DiskOptions& disk);
  ~DiskState() override;

  void for_each(const Visit& visit, Access access) override;
  StateChunk at(std::size_t unit, Range range) const override { return {unit, range, {}, {}}; }
  void read(std::size_t unit, Range range, int array, std::span<std::byte> out) override;
  void write(std::size_t unit, Range range, int array, std::span<const std::byte> in) override;
  Bytes master_bytes() const override { return Bytes(0); }
  Bytes moment_bytes() const override { return Bytes(0); }
  Bytes disk_bytes() const override;
  Bytes transient_bytes() const override;
  memory::TierStats take_stats() override;

 private:
  struct File;
  void for_overlaps(std::size_t unit, Range range, int array,
                    const std::function<void(std::byte* record, std::int64_t at, std::int64_t count,
                                             bool& changed)>& use);
  File& file_of(std::size_t unit) const;

  std::unique_ptr<File> trained_;
  std::unique_ptr<File> frozen_;
};

std::unique_ptr<StateStore> make_state_store(const Layout& layout, Rank me, int num_moments,
                                             at::ScalarType moments, const DiskOptions& disk);

}  // namespace trireme::parallel
