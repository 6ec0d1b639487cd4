#include "trireme/ckpt/measure.hpp"

#include "trireme/base/environment.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/memory/host_buffer.hpp"

#include "ckpt/format.hpp"
#include "ckpt/io.hpp"
#include "ckpt/slots.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kRawBlock = Slots::kSlotBytes;
// A dozen units of a dozen tensors. Each unit is cut into one range a rank, as the sharding engine
// cuts it; the cuts fall within blocks of the file.
constexpr std::int64_t kUnits = 12;
constexpr std::int64_t kTensorsOfUnit = 12;

void forget(const fs::path& path) {
  const FileDescriptor file = open_to_read(path);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

class Measurement {
 public:
  Measurement(comm::Communicator& comm, const MeasureOptions& options)
      : comm_(comm),
        options_(options),
        folder_(options.folder / fmt::format("trireme-bench-{}", agreed_id())),
        raw_(folder_ / fmt::format("raw-{}", comm.rank().value)) {
    const std::int64_t ranks = comm.size();
    const std::int64_t least = kUnits * kTensorsOfUnit * 4 * ranks;
    const std::int64_t elements = options.bytes.value / (kUnits * kTensorsOfUnit * 4);
    comm_.agree("bench prepare", [&] {
      if (options.bytes.value < least || options.runs < 1) {
        throw Error(ErrorKind::kConfig, "there is nothing to measure",
                    fmt::format("give at least {} and one run", human(Bytes(least))));
      }
      fs::create_directories(folder_);
      for (std::int64_t unit = 0; unit < kUnits; ++unit) add_unit(unit, elements | 1);
      all_ = Bytes((elements | 1) * kUnits * kTensorsOfUnit * 4);
      source_ = memory::HostBuffer(Bytes(static_cast<std::int64_t>(mine_)), "bench source");
      target_ = memory::HostBuffer(Bytes(static_cast<std::int64_t>(mine_)), "bench target");
      std::uint32_t word = 1 + static_cast<std::uint32_t>(comm.rank().value);
      for (std::uint32_t& value : source_.as<std::uint32_t>())
        value = word = word * 1664525U + 1013904223U;
      const std::uint64_t share = static_cast<std::uint64_t>(all_.value / ranks + 1);
      raw_bytes_ = (share + kRawBlock - 1) / kRawBlock * kRawBlock;
      block_.emplace(1, "raw requests");
      std::memcpy(block().data(), source_.bytes().data(), std::min(kRawBlock, mine_));
    });
  }

  ~Measurement() {
    std::error_code ignored;
    if (comm_.is_root()) fs::remove_all(folder_, ignored);
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  Measured run() {
    const Bytes raw(static_cast<std::int64_t>(raw_bytes_) * comm_.size());
    Measured result{options_.folder, comm_.size(), {}, {}};
    result.timings = {
        {"raw write",
         "O_DIRECT and fsync, a file for each rank, in requests of 4 MiB",
         "",
         {},
         raw},
        {"save", "state.h5 and manifest: checksums, fsync and commit", "raw write", {}, all_},
        {"raw read", "O_DIRECT, a file for each rank, in requests of 4 MiB", "", {}, raw},
        {"load", "from disk, every checksum checked", "raw read", {}, all_}};
    if (options_.mpiio)
      result.timings.push_back(
          {"mpiio", "the save by checkpoint.driver: mpiio", "raw write", {}, all_});
    for (int run = 0; run < options_.runs; ++run) {
      result.timings[0].seconds.push_back(time("raw write", [&] { write_raw(); }));
      result.timings[1].seconds.push_back(
          time("save", [&] { save(run, Driver::kDirect, result.notes); }));
      result.timings[2].seconds.push_back(time("raw read", [&] { read_raw(); }));
      comm_.agree("bench forget", [&] { forget(checkpoint_ / kStateFile); });
      std::memset(target_.bytes().data(), 0xee, mine_);
      result.timings[3].seconds.push_back(time("load", [&] { load(); }));
      comm_.agree("bench compare", [&] {
        if (std::memcmp(target_.bytes().data(), source_.bytes().data(), mine_) != 0)
          throw Error(ErrorKind::kCorrupt, "what was loaded is not what was saved");
      });
      clean();
      if (options_.mpiio) {
        result.timings[4].seconds.push_back(
            time("save by MPI-IO", [&] { save(run, Driver::kMpiio, result.notes); }));
        clean();
      }
      if (comm_.is_root() && options_.progress) {
        std::string line = fmt::format("run {} of {}:", run + 1, options_.runs);
        for (const Timing& timing : result.timings)
          line += fmt::format("  {} {:.3f} s", timing.what, timing.seconds.back());
        options_.progress(line);
      }
    }
    return result;
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Range {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  void add_unit(std::int64_t unit, std::int64_t elements) {
    const std::int64_t all = elements * kTensorsOfUnit;
    const std::int64_t from = all * comm_.rank().value / comm_.size();
    const std::int64_t to = all * (comm_.rank().value + 1) / comm_.size();
    for (std::int64_t i = 0; i < kTensorsOfUnit; ++i) {
      specs_.push_back({fmt::format("/model/unit.{}.{}", unit, i), DType::kFloat32, {elements}});
      const std::int64_t begin = std::clamp(from - i * elements, std::int64_t{0}, elements);
      const std::int64_t end = std::clamp(to - i * elements, std::int64_t{0}, elements);
      ranges_.push_back({begin, end - begin});
      mine_ += static_cast<std::size_t>(end - begin) * sizeof(float);
    }
  }

  std::string agreed_id() {
    const std::string text = std::to_string(::getpid());
    const auto bytes = std::as_bytes(std::span(text));
    const comm::ByteVector root =
        comm_.broadcast(comm::ByteVector(bytes.begin(), bytes.end()), "bench folder");
    return {reinterpret_cast<const char*>(root.data()), root.size()};
  }

  // Of the slowest rank, on root's clock.
  template <class Action>
  double time(const char* what, Action action) {
    comm_.barrier(what);
    const Clock::time_point start = Clock::now();
    comm_.agree(what, action);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void write_raw() {
    bool direct = false;
    { const FileDescriptor made = io_.open("create", raw_, O_WRONLY | O_CREAT | O_EXCL); }
    const FileDescriptor file = io_.open_direct(raw_, direct);
    for (std::uint64_t at = 0; at < raw_bytes_; at += kRawBlock)
      io_.write("write", file.get(), block(), at, raw_, direct);
    io_.sync("fsync", file.get(), raw_);
  }

  void read_raw() {
    forget(raw_);
    int fd = ::open(raw_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0 && errno == EINVAL) fd = ::open(raw_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw_errno("open", raw_.string());
    const FileDescriptor file(fd);
    for (std::uint64_t at = 0; at < raw_bytes_; at += kRawBlock)
      read_exactly(file.get(), block(), at, raw_);
  }

  template <class AnyExtent>
  std::vector<AnyExtent> extents(std::byte* memory) const {
    std::vector<AnyExtent> result;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      result.push_back({i, ranges_[i].begin, ranges_[i].count, memory});
      memory += static_cast<std::size_t>(ranges_[i].count) * sizeof(float);
    }
    return result;
  }

  void save(int run, Driver driver, std::vector<std::string>& notes) {
    Snapshot snapshot{specs_, extents<ConstExtent>(source_.bytes().data()), {}};
    SaveResult done = saver_.save(comm_, snapshot, {folder_, Step(run), 0, driver});
    checkpoint_ = done.path;
    for (std::string& note : done.notes) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end())
        notes.push_back(std::move(note));
    }
  }

  void load() { Reader(checkpoint_).read(extents<Extent>(target_.bytes().data())); }

  void clean() {
    std::error_code ignored;
    fs::remove(raw_, ignored);
    comm_.barrier("bench clean");
    if (comm_.is_root()) fs::remove_all(checkpoint_, ignored);
    comm_.barrier("bench clean");
  }

  std::span<std::byte> block() const { return (*block_)[0]; }

  comm::Communicator& comm_;
  const MeasureOptions& options_;
  const Io io_{{}};
  Saver saver_;
  fs::path folder_;
  fs::path raw_;
  fs::path checkpoint_;
  std::vector<TensorSpec> specs_;
  std::vector<Range> ranges_;  // this rank's, of each tensor
  std::size_t mine_ = 0;       // bytes of this rank
  Bytes all_;
  std::uint64_t raw_bytes_ = 0;
  memory::HostBuffer source_;
  memory::HostBuffer target_;
  std::optional<Slots> block_;
};

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string file_system(const fs::path& folder) {
  struct statfs status {};
  if (::statfs(folder.c_str(), &status) != 0) return "unknown";
  constexpr std::pair<long, const char*> kNames[] = {
      {0xef53, "ext4"},      {0x58465342, "xfs"},       {0x9123683e, "btrfs"},
      {0x01021994, "tmpfs"}, {0x6969, "nfs"},           {0x0bd00bd0, "lustre"},
      {0x47504653, "gpfs"},  {0x794c7630, "overlayfs"}, {0x19830326, "beegfs"},
      {0x65735546, "fuse"}};
  for (const auto& [magic, name] : kNames) {
    if (status.f_type == magic) return name;
  }
  return fmt::format("type {:#x}", static_cast<unsigned long>(status.f_type));
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts));
  return text;
}

Json context_of(const Measured& measured) {
  struct utsname system {};
  ::uname(&system);
  double load = 0;
  ::getloadavg(&load, 1);
  return {{"date", today()},
          {"host", host_name()},
          {"cpu", cpu_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"system", fmt::format("{} {}", system.sysname, system.release)},
          {"load", load},
          {"folder", measured.folder.string()},
          {"file_system", file_system(measured.folder)},
          {"ranks", measured.ranks},
          {"trireme", build::kVersion},
          {"commit", build::kGitCommit},
          {"compiler", build::kCompiler},
          {"build_type", build::kBuildType},
          {"mpi", build::kMpi},
          {"hdf5", build::kHdf5}};
}

double gigabytes_per_second(const Timing& timing, double seconds) {
  return static_cast<double>(timing.bytes.value) / seconds / 1e9;
}

const Timing* bound_of(const Measured& measured, const Timing& timing) {
  for (const Timing& other : measured.timings) {
    if (other.what == timing.bound) return &other;
  }
  return nullptr;
}

// Of the medians, as rates: the sizes differ by a rounded block.
double share_of_bound(const Timing& timing, const Timing& bound) {
  return gigabytes_per_second(timing, timing.median_seconds()) /
         gigabytes_per_second(bound, bound.median_seconds());
}

}  // namespace

double Timing::median_seconds() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

Measured measure_io(comm::Communicator& comm, const MeasureOptions& options) {
  return Measurement(comm, options).run();
}

std::string to_text(const Measured& measured, bool json) {
  if (json) {
    Json rows = Json::array();
    for (const Timing& timing : measured.timings) {
      Json row = {{"what", timing.what},
                  {"how", timing.how},
                  {"bytes", timing.bytes.value},
                  {"seconds", timing.seconds},
                  {"gb_per_s", gigabytes_per_second(timing, timing.median_seconds())}};
      if (const Timing* bound = bound_of(measured, timing)) {
        row["bound"] = bound->what;
        row["share_of_bound"] = share_of_bound(timing, *bound);
      }
      rows.push_back(std::move(row));
    }
    return Json{{"context", context_of(measured)}, {"rows", rows}, {"notes", measured.notes}}
        .dump();
  }
  std::string text = fmt::format("{}, {} rank{}, {} ({})\n", human(measured.timings[1].bytes),
                                 measured.ranks, measured.ranks == 1 ? "" : "s",
                                 measured.folder.string(), file_system(measured.folder));
  for (const Timing& timing : measured.timings) {
    const auto [least, most] = std::minmax_element(timing.seconds.begin(), timing.seconds.end());
    text += fmt::format("{:<10} median {:6.2f} GB/s ({:.2f} to {:.2f})", timing.what,
                        gigabytes_per_second(timing, timing.median_seconds()),
                        gigabytes_per_second(timing, *most), gigabytes_per_second(timing, *least));
    if (const Timing* bound = bound_of(measured, timing))
      text += fmt::format("  {:.2f} of {}", share_of_bound(timing, *bound), bound->what);
    text += fmt::format("  {}\n", timing.how);
  }
  for (const std::string& note : measured.notes) text += fmt::format("note: {}\n", note);
  text.pop_back();
  return text;
}

}  // namespace trireme::ckpt
