// What can be tried on one node without the others.
#include "trireme/base/error.hpp"
#include "trireme/base/units.hpp"
#include "trireme/cluster/cores.hpp"
#include "trireme/cluster/diagnosis.hpp"
#include "trireme/cluster/identity.hpp"
#include "trireme/cluster/placement.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace trireme::cluster {

namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> limit(__rlimit_resource which) {
  rlimit value{};
  if (getrlimit(which, &value) != 0 || value.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return value.rlim_cur;
}

Limits limits() {
  return {limit(RLIMIT_NOFILE), limit(RLIMIT_MEMLOCK), limit(RLIMIT_AS), limit(RLIMIT_STACK)};
}

std::uint64_t memory_size() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
}

Finding shared_memory() {
  struct statvfs space {};
  if (statvfs("/dev/shm", &space) != 0)
    return {"shared memory", Severity::kFault, "there is no /dev/shm",
            "mount -t tmpfs tmpfs /dev/shm: ranks of a node share their weights there"};
  return judge_shared_memory(space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize,
                             memory_size());
}

Finding processors() {
  const int cores = affinity_cores();
  const int usable = usable_cores();
  Finding finding{
      "processors", Severity::kGood,
      fmt::format("the first rank may use {} of {}", usable, sysconf(_SC_NPROCESSORS_ONLN))};
  if (usable < cores) {
    finding.severity = Severity::kNote;
    finding.text += fmt::format(": its mask has {}, a control group's quota gives less", cores);
  }
  return finding;
}

// ---- GPUs ----

Findings gpus(bool built_with_cuda) {
  std::vector<Gpu> found;
  try {
    found = read_machine().gpus;
  } catch (const Error& error) {
    return {{"GPUs", Severity::kWarning, error.message, error.hint}};
  }
  if (found.empty()) return {{"GPUs", Severity::kGood, "none on the PCI bus"}};
  const auto nvidia = std::ranges::count(found, "NVIDIA", &Gpu::vendor);
  Finding finding{
      "GPUs", Severity::kGood,
      fmt::format("{}, the first is {} at {}", found.size(), found[0].vendor, found[0].address)};
  if (nvidia > 0 && !fs::exists("/proc/driver/nvidia/version")) {
    finding.severity = Severity::kWarning;
    finding.remedy = "NVIDIA's driver is not loaded: is this a node of the GPU partition?";
  } else if (!built_with_cuda) {
    finding.severity = Severity::kNote;
    finding.remedy = "this build computes on processors only";
  }
  return {finding};
}

// NCCL is opened, not linked: only its version is wanted.
Finding nccl(bool built_with_cuda) {
  const std::unique_ptr<void, int (*)(void*)> library(
      dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL), dlclose);
  if (!library) {
    return {"NCCL", built_with_cuda ? Severity::kFault : Severity::kGood,
            "libnccl.so.2 is not here",
            built_with_cuda ? "module load nccl, or LD_LIBRARY_PATH" : ""};
  }
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library.get(), "ncclGetVersion"));
  int number = 0;
  if (version == nullptr || version(&number) != 0)
    return {"NCCL", Severity::kWarning, "libnccl.so.2 does not tell its version",
            "another library?"};
  return {"NCCL", Severity::kGood,
          number >= 10000
              ? fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100)
              : fmt::format("{}", number)};
}

// ---- the run's folder ----

std::string file_system(const fs::path& folder) {
  struct statfs found {};
  if (statfs(folder.c_str(), &found) != 0) return "unknown";
  switch (static_cast<unsigned long>(found.f_type)) {
    case 0x0bd00bd0:
      return "Lustre";
    case 0x47504653:
      return "GPFS";
    case 0x19830326:
      return "BeeGFS";
    case 0x6969:
      return "NFS";
    case 0x01021994:
      return "tmpfs";
    case 0xef53:
      return "ext4";
    case 0x58465342:
      return "XFS";
    case 0x794c7630:
      return "overlay";
    case 0x9123683e:
      return "btrfs";
    default:
      return fmt::format("type {:#x}", found.f_type);
  }
}

// A file in the folder that is gone when this is.
class Scratch {
 public:
  explicit Scratch(const fs::path& folder)
      : path_(folder / fmt::format(".trireme-doctor-{}-{}", host_name(), getpid())),
        descriptor_(open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {}
  ~Scratch() {
    if (descriptor_ < 0) return;
    close(descriptor_);
    unlink(path_.c_str());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  int descriptor() const { return descriptor_; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int descriptor_;
};

Finding direct_writes(const Scratch& scratch) {
  constexpr std::size_t kBlock = 4096;
  const std::unique_ptr<void, void (*)(void*)> block(std::aligned_alloc(kBlock, kBlock), std::free);
  std::memset(block.get(), 0, kBlock);
  const int direct = open(scratch.path().c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
  const bool written = direct >= 0 && pwrite(direct, block.get(), kBlock, 0) == kBlock;
  const int why = errno;
  if (direct >= 0) close(direct);
  if (written) return {"direct writes", Severity::kGood, "O_DIRECT works in the run's folder"};
  return {"direct writes", Severity::kNote, fmt::format("no O_DIRECT here: {}", std::strerror(why)),
          "checkpoints go through the page cache: slower, and they displace other pages"};
}

Finding locks(const Scratch& scratch) {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_len = 1;
  const bool whole = flock(scratch.descriptor(), LOCK_EX | LOCK_NB) == 0;
  const int why = errno;
  const bool part = fcntl(scratch.descriptor(), F_SETLK, &range) == 0;
  const int why_part = errno;
  if (whole && part)
    return {"file locks", Severity::kGood, "flock and fcntl work in the run's folder"};
  return {"file locks", Severity::kWarning,
          fmt::format("{} does not work: {}", whole ? "fcntl" : "flock",
                      std::strerror(whole ? why_part : why)),
          "mount with flock (Lustre: -o flock), set HDF5_USE_FILE_LOCKING=FALSE, and keep two jobs "
          "from one run's folder yourself"};
}

Findings folder_checks(const fs::path& folder) {
  const Scratch scratch(folder);
  if (scratch.descriptor() < 0) {
    return {{"run folder", Severity::kFault,
             fmt::format("{} cannot be written: {}", folder.string(), std::strerror(errno)),
             "name another with --folder, and with run.dir for runs"}};
  }
  std::error_code ignored;
  const auto space = fs::space(folder, ignored);
  Finding where{"run folder", Severity::kGood,
                fmt::format("{} on {}, {} free", folder.string(), file_system(folder),
                            human(Bytes(static_cast<std::int64_t>(space.available))))};
  if (space.available < 1ULL << 30U) {
    where.severity = Severity::kWarning;
    where.remedy = "a checkpoint takes 12 bytes a parameter, and checkpoint.keep of them stay";
  }
  return {where, direct_writes(scratch), locks(scratch)};
}

}  // namespace

std::string fast_network_device() {
  for (const char* folder : {"/sys/class/infiniband", "/sys/class/cxi", "/sys/class/hfi1"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      return entry.path().filename().string();
  }
  return {};
}

Findings check_node(const Environment& environment, const fs::path& folder, bool built_with_cuda) {
  Findings findings = judge_limits(limits(), !fast_network_device().empty());
  const auto add = [&](Findings more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  add({shared_memory(), processors()});
  add(gpus(built_with_cuda));
  add({nccl(built_with_cuda)});
  add(folder_checks(folder));
  // Open MPI's own input and output deadlocks on some file systems (open-mpi/ompi issues 9479, 11182).
  if (file_system(folder) == "Lustre" && !environment.contains("OMPI_MCA_io")) {
    add({{"MPI files", Severity::kNote, "Open MPI's OMPIO has hung on Lustre",
          "OMPI_MCA_io=romio321 for checkpoint.driver mpiio, should it hang"}});
  }
  for (Finding& finding : findings) finding.hosts = {host_name()};
  return findings;
}

}  // namespace trireme::cluster
