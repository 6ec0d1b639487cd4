#include "trireme/base/error.hpp"

#include "parallel/state_store.hpp"
#include "parallel/unit_file.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace trireme::parallel {

namespace {

// Elements of a record: 3 MiB of AdamW's state in fp32.
constexpr std::int64_t kRun = 32 * kBlock;

// Where a record's elements lie.
struct RecordPlace {
  std::size_t unit;
  Range range;
};

}  // namespace

// The records of one kind of unit, and one record at hand for access out of order.
struct DiskState::File {
  std::vector<RecordPlace> places;
  std::int64_t run = kBlock;    // elements that a record has room for
  std::vector<std::size_t> at;  // byte offset of each array in a payload
  std::size_t payload = 0;
  std::unique_ptr<memory::TierFile> file;
  std::unique_ptr<memory::TierRing> ring;
  std::uint64_t stamp = 0;  // 0: nothing was written yet
  memory::HostBuffer at_hand;
  std::optional<std::size_t> in_hand;
  bool changed = false;

  std::byte* payload_at_hand() const { return at_hand.bytes().data() + memory::kRecordHeader; }

  // Writes the record at hand back if it was changed.
  void flush() {
    if (in_hand && changed) file->wait(file->write(*in_hand, at_hand.bytes(), stamp));
    changed = false;
  }
  void take(std::size_t record) {
    if (in_hand == record) return;
    flush();
    in_hand.reset();
    file->wait(file->read(record, at_hand.bytes(), stamp));
    in_hand = record;
  }
  // The record that holds an element.
  std::size_t find(std::size_t unit, std::int64_t element) const {
    const auto after = std::upper_bound(
        places.begin(), places.end(), std::pair(unit, element),
        [](const std::pair<std::size_t, std::int64_t>& wanted, const RecordPlace& place) {
          return wanted < std::pair(place.unit, place.range.begin);
        });
    return static_cast<std::size_t>(after - places.begin()) - 1;
  }
};

DiskState::DiskState(const Layout& layout, Rank me, int num_moments, at::ScalarType moments,
                     const DiskOptions& disk)
    : StateStore(layout, me, num_moments, moments) {
  for (const bool trains : {true, false}) {
    auto file = std::make_unique<File>();
    std::int64_t largest = 0;
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      if (layout.unit(u).trains != trains) continue;
      for (const Range& part : parts(u)) {
        largest = std::max(largest, part.size());
        for (std::int64_t begin = part.begin; begin < part.end; begin += kRun)
          file->places.push_back({u, {begin, std::min(begin + kRun, part.end)}});
      }
    }
    if (file->places.empty()) continue;
    file->run = std::min(largest, kRun);
    const int arrays = trains ? 1 + num_moments : 1;
    for (int array = 0; array < arrays; ++array) {
      file->at.push_back(file->payload);
      file->payload += static_cast<std::size_t>(file->run) * element_size(array);
    }
    const char* const what = trains ? "optimizer state" : "frozen weights";
    file->file = std::make_unique<memory::TierFile>(tier_options(
        disk, fmt::format("{} of rank {}", what, me.value), file->payload, file->places.size()));
    file->ring = std::make_unique<memory::TierRing>(*file->file);
    file->at_hand = memory::HostBuffer(Bytes(static_cast<std::int64_t>(file->file->record_bytes())),
                                       "a record of state");
    (trains ? trained_ : frozen_) = std::move(file);
  }
}

DiskState::~DiskState() = default;

DiskState::File& DiskState::file_of(std::size_t unit) const {
  return layout_.unit(unit).trains ? *trained_ : *frozen_;
}

// The first pass fills records from nothing: it must write every element.
void DiskState::for_each(const Visit& visit, Access access) {
  for (File* file : {trained_.get(), frozen_.get()}) {
    if (file == nullptr) continue;
    file->flush();
    file->in_hand.reset();
    memory::StreamOptions options;
    options.reads = file->stamp != 0;
    options.writes = access == Access::kWrite;
    ensure(options.reads || options.writes, "state is written before it is read");
    options.read_stamp = file->stamp;
    options.write_stamp = file->stamp + 1;
    file->ring->stream(0, file->places.size(), options,
                       [&](std::size_t record, std::span<std::byte> payload) {
                         const auto& [unit, range] = file->places[record];
                         StateChunk chunk{unit, range, {}, {}};
                         if (!options.reads) std::ranges::fill(payload, std::byte{0});
                         chunk.master = {reinterpret_cast<float*>(payload.data()),
                                         static_cast<std::size_t>(range.size())};
                         for (std::size_t array = 1; array < file->at.size(); ++array)
                           chunk.moments[array - 1] = payload.data() + file->at[array];
                         visit(chunk);
                       });
    if (options.writes) ++file->stamp;
  }
}

// Calls `use` for each record that overlaps the range, with the place of the first element there,
// its distance from the range's begin and the number of elements.
void DiskState::for_overlaps(
    std::size_t unit, Range range, int array,
    const std::function<void(std::byte*, std::int64_t, std::int64_t, bool&)>& use) {
  File& file = file_of(unit);
  for (std::int64_t begin = range.begin; begin < range.end;) {
    const std::size_t record = file.find(unit, begin);
    const Range& there = file.places[record].range;
    const std::int64_t end = std::min(range.end, there.end);
    file.take(record);
    std::byte* const data = file.payload_at_hand() + file.at[static_cast<std::size_t>(array)] +
                            static_cast<std::size_t>(begin - there.begin) * element_size(array);
    use(data, begin - range.begin, end - begin, file.changed);
    begin = end;
  }
}

void DiskState::read(std::size_t unit, Range range, int array, std::span<std::byte> out) {
  for_overlaps(unit, range, array,
               [&](std::byte* data, std::int64_t at, std::int64_t count, bool& /*changed*/) {
                 std::memcpy(out.data() + static_cast<std::size_t>(at) * element_size(array), data,
                             static_cast<std::size_t>(count) * element_size(array));
               });
}

void DiskState::write(std::size_t unit, Range range, int array, std::span<const std::byte> in) {
  for_overlaps(unit, range, array,
               [&](std::byte* data, std::int64_t at, std::int64_t count, bool& changed) {
                 std::memcpy(data, in.data() + static_cast<std::size_t>(at) * element_size(array),
                             static_cast<std::size_t>(count) * element_size(array));
                 changed = true;
               });
}

Bytes DiskState::disk_bytes() const {
  Bytes total;
  for (const File* file : {trained_.get(), frozen_.get()}) {
    if (file != nullptr) {
      total.value += static_cast<std::int64_t>(file->file->record_bytes() * file->places.size());
    }
  }
  return total;
}

Bytes DiskState::transient_bytes() const {
  Bytes total;
  for (const File* file : {trained_.get(), frozen_.get()}) {
    if (file == nullptr) continue;
    total.value +=
        file->ring->size().value + static_cast<std::int64_t>(file->at_hand.bytes().size());
  }
  return total;
}

memory::TierStats DiskState::take_stats() {
  memory::TierStats total;
  for (const File* file : {trained_.get(), frozen_.get()}) {
    if (file != nullptr) add(total, file->file->take_stats());
  }
  return total;
}

}  // namespace trireme::parallel
