// The disk tier against the disk: beside each pass of the ring stands a loop of plain direct reads
// and writes of the same bytes by a few threads, and the ratio of their rates is how much of the
// disk is reached. Every record is verified by its checksum; the first pass also by its content.
//   TRIREME_BENCH_FOLDER=/local/scratch tier_bench --benchmark_repetitions=5
//     --benchmark_enable_random_interleaving=true
// The argument is a record's payload in MiB; a pass moves 512 MiB each way. Counters: `stalled` is
// the part of the time for which the caller waited, `busy` the part in which the disk worked.
#include "trireme/base/deadline.hpp"
#include "trireme/base/handle.hpp"
#include "trireme/kernels/checksum.hpp"
#include "trireme/memory/tier_file.hpp"

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

namespace {

using namespace trireme;
using benchmark::State;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPass = 512 * kMiB;

std::filesystem::path folder() {
  const char* const given = std::getenv("TRIREME_BENCH_FOLDER");
  return given != nullptr ? given : std::filesystem::temp_directory_path();
}

memory::TierFileOptions options(std::size_t payload, memory::TierEngine engine) {
  memory::TierFileOptions result;
  result.folder = folder();
  result.label = "benchmark";
  result.payload = payload;
  result.num_records = kPass / payload;
  result.checksum = kernels::crc32c;
  result.engine = engine;
  return result;
}

void set_rates(State& state, bool reads, bool writes) {
  const auto bytes = static_cast<std::int64_t>(kPass) * (reads ? 1 : 0) +
                     static_cast<std::int64_t>(kPass) * (writes ? 1 : 0);
  state.SetBytesProcessed(state.iterations() * bytes);
}

// The bounds: plain direct I/O, four threads each way, from and to as much memory as a ring has.
class RawFile {
 public:
  static constexpr std::size_t kPiece = kMiB;
  static constexpr std::size_t kMemory = 96 * kMiB;

  RawFile() : fd_(::open(folder().c_str(), O_TMPFILE | O_RDWR | O_DIRECT, 0600)) {
    good_ = fd_ && ::fallocate(fd_.get(), 0, 0, kPass) == 0;
    move(true);
  }
  bool good() const { return good_; }
  void move(bool write) {
    std::atomic<std::size_t> next{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::size_t at = next.fetch_add(kPiece); at < kPass; at = next.fetch_add(kPiece)) {
          std::byte* const data = memory_[write ? 1 : 0].bytes().data() + at % kMemory;
          const auto offset = static_cast<off_t>(at);
          const auto moved = write ? ::pwrite(fd_.get(), data, kPiece, offset)
                                   : ::pread(fd_.get(), data, kPiece, offset);
          if (moved != ssize_t{kPiece}) good_ = false;
        }
      });
    }
  }

 private:
  FileDescriptor fd_;
  std::atomic<bool> good_{true};
  memory::HostBuffer memory_[2] = {{Bytes(kMemory), "reads"}, {Bytes(kMemory), "writes"}};
};

void bound(State& state, bool reads, bool writes) {
  static RawFile file;
  for (auto _ : state) {
    std::jthread reader;
    if (reads) reader = std::jthread([&] { file.move(false); });
    if (writes) file.move(true);
  }
  if (!file.good()) state.SkipWithError("the disk failed");
  set_rates(state, reads, writes);
}
void bound_read(State& state) { bound(state, true, false); }
void bound_write(State& state) { bound(state, false, true); }
void bound_both(State& state) { bound(state, true, true); }

struct Ring {
  Ring(State& state, memory::TierEngine engine)
      : file(options(static_cast<std::size_t>(state.range(0)) * kMiB, engine)), ring(file) {
    ring.stream(0, file.num_records(), {.write_stamp = 1, .reads = false},
                [](std::size_t index, std::span<std::byte> payload) {
                  payload[0] = static_cast<std::byte>(index);
                });
    ring.stream(0, file.num_records(), {.read_stamp = 1, .writes = false},
                [&](std::size_t index, std::span<std::byte> payload) {
                  if (payload[0] != static_cast<std::byte>(index)) state.SkipWithError("wrong");
                });
    file.take_stats();
  }
  memory::TierFile file;
  memory::TierRing ring;
};

void pass(State& state, memory::TierEngine engine, bool reads, bool writes, double update = 0) {
  Ring ring(state, engine);
  std::uint64_t stamp = 1;
  const auto start = Clock::now();
  for (auto _ : state) {
    ring.ring.stream(0, ring.file.num_records(),
                     {.read_stamp = stamp,
                      .write_stamp = writes ? stamp + 1 : 0,
                      .reads = reads,
                      .writes = writes},
                     [&](std::size_t, std::span<std::byte> payload) {
                       payload[1] = std::byte{7};
                       const auto began = Clock::now();
                       while (seconds_since(began) < update) benchmark::ClobberMemory();
                     });
    if (writes) ++stamp;
  }
  const double seconds = seconds_since(start);
  const memory::TierStats stats = ring.file.take_stats();
  state.counters["stalled"] = stats.stalled / seconds;
  state.counters["busy"] = stats.busy / seconds;
  set_rates(state, reads, writes);
}

constexpr auto kBest = memory::TierEngine::kBest;
constexpr auto kThreads = memory::TierEngine::kThreads;

void ring_read(State& state) { pass(state, kBest, true, false); }
void ring_write(State& state) { pass(state, kBest, false, true); }
void ring_both(State& state) { pass(state, kBest, true, true); }
void ring_both_threads(State& state) { pass(state, kThreads, true, true); }

// An update that takes as long as the disk needs for its record: what is left of the wait.
void ring_both_with_update(State& state) {
  Ring trial(state, kBest);
  const auto start = Clock::now();
  trial.ring.stream(0, trial.file.num_records(), {.read_stamp = 1, .write_stamp = 2},
                    [](std::size_t, std::span<std::byte>) {});
  const double disk = seconds_since(start);
  state.counters["disk"] = disk;
  pass(state, kBest, true, true, disk / static_cast<double>(trial.file.num_records()));
}

BENCHMARK(bound_read)->UseRealTime();
BENCHMARK(bound_write)->UseRealTime();
BENCHMARK(bound_both)->UseRealTime();
BENCHMARK(ring_read)->Arg(8)->Arg(32)->UseRealTime();
BENCHMARK(ring_write)->Arg(8)->Arg(32)->UseRealTime();
BENCHMARK(ring_both)->Arg(8)->Arg(32)->UseRealTime();
BENCHMARK(ring_both_threads)->Arg(32)->UseRealTime();
BENCHMARK(ring_both_with_update)->Arg(8)->Arg(32)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
