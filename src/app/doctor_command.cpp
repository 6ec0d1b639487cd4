#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/cluster/diagnosis.hpp"
#include "trireme/train/peak.hpp"

#include "ckpt/hdf5.hpp"
#include "commands.hpp"
#include "run_in_context.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

namespace trireme::app {

namespace {

namespace fs = std::filesystem;
using cluster::Finding;
using cluster::Findings;
using cluster::Severity;

struct Arguments {
  fs::path folder = ".";
  double patience = 60;
  bool json = false;
};

comm::ByteVector as_bytes(const std::string& text) {
  comm::ByteVector bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string as_text(const comm::ByteVector& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

double seconds_of_day() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Calls into MPI's files and HDF5 have no deadline of their own; this ends the job for one that does
// not come back.
class Patience {
 public:
  Patience(Context& context, std::string what, double seconds)
      : thread_([&context, what = std::move(what), seconds, this](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          const bool ended = done_.wait_for(lock, stop, std::chrono::duration<double>(seconds),
                                            [&stop] { return stop.stop_requested(); });
          if (ended || stop.stop_requested()) return;
          fmt::print(stderr, "fault    {}: did not end within {:.0f} s on rank {}\n", what, seconds,
                     context.world().rank().value);
          std::fflush(stderr);
          context.session().abort(exit_code(ErrorKind::kTimeout));
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any done_;
  std::jthread thread_;
};

// Of every rank, on every rank.
std::vector<std::string> hosts_of_ranks(comm::Communicator& world) {
  std::vector<std::string> hosts;
  const std::string mine = host_name();
  for (const comm::ByteVector& bytes :
       world.all_gather(std::as_bytes(std::span(mine)), "names of hosts"))
    hosts.push_back(as_text(bytes));
  return hosts;
}

// @collective. Each rank's findings on rank 0.
Findings gather(const Findings& mine, comm::Communicator& world) {
  std::vector<comm::Message> out;
  out.push_back({Rank(0), as_bytes(cluster::encode(mine))});
  Findings all;
  for (const comm::Message& message : world.exchange(std::move(out), "findings")) {
    const Findings theirs = cluster::decode_findings(as_text(message.bytes));
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

Finding mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string version(text.data(), static_cast<std::size_t>(length));
  version = version.substr(0, version.find_first_of(",\n"));
  const std::string built(build::kMpi);
  Finding finding{"MPI", Severity::kGood, version};
  const std::string family = built.substr(0, built.find(' '));
  if (version.find(family) == std::string::npos) {
    finding.severity = Severity::kFault;
    finding.text += fmt::format(", but this build is for {}", built);
    finding.remedy = "load the MPI that trireme was built with, or build it with this one";
  }
  return finding;
}

std::string settings_of_transport(const Environment& environment) {
  std::string text;
  for (const char* name : {"OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "UCX_TLS",
                           "UCX_NET_DEVICES", "FI_PROVIDER", "MPICH_OFI_NIC_POLICY"}) {
    if (const auto value = lookup(environment, name)) text += fmt::format(" {}={}", name, *value);
  }
  return text.empty() ? "chosen by MPI" : "asked for:" + text;
}

// @collective. A window that the ranks of a node write to and read from each other.
Findings check_windows(Context& context) {
  comm::NodeGroup& node = context.session().node();
  constexpr std::size_t kBytes = 8U << 20U;
  const auto start = std::chrono::steady_clock::now();
  const comm::SharedSegments segments = node.allocate(kBytes);
  const auto mark = [](int local) { return static_cast<std::byte>(local + 1); };
  std::ranges::fill(segments.of(node.local_rank()), mark(node.local_rank()));
  node.barrier("doctor: windows");
  bool good = true;
  for (int local = 0; local < node.size(); ++local) {
    const auto theirs = segments.of(local);
    good = good && std::ranges::all_of(theirs, [&](std::byte b) { return b == mark(local); });
  }
  node.barrier("doctor: windows read");
  if (!good) {
    return {{"node windows",
             Severity::kFault,
             "ranks of a node do not see each other's memory",
             "are they in one container, and is /dev/shm the same for all?",
             {host_name()}}};
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (node.local_rank() != 0) return {};
  const bool slow = seconds > 5;
  return {{"node windows",
           slow ? Severity::kWarning : Severity::kGood,
           slow ? fmt::format("shared by {} ranks, but slow: {:.1f} s", node.size(), seconds)
                : fmt::format("shared by {} rank{}", node.size(), node.size() == 1 ? "" : "s"),
           slow ? "is /dev/shm, or the session directory of MPI, on a network file system?" : "",
           {host_name()}}};
}

// @collective. Every round: all are let go together and look at their clocks; the round in which
// they came out closest counts.
Finding check_clocks(comm::Communicator& world, const std::vector<std::string>& hosts) {
  std::vector<double> best;
  double uncertainty = 1e9;
  for (int round = 0; round < 8; ++round) {
    world.barrier("doctor: clocks");
    const double before = seconds_of_day();
    world.barrier("doctor: clocks again");
    const double after = seconds_of_day();
    // Between the two barriers lies one moment that all share.
    const std::array<double, 2> mine{(before + after) / 2, after - before};
    const auto all = comm::all_gather_values(world, mine, "clocks");
    double wait = 0;
    for (const auto& [middle, width] : all) wait = std::max(wait, width);
    if (wait >= uncertainty) continue;
    uncertainty = wait;
    best.clear();
    for (const auto& [middle, width] : all) best.push_back(middle - all[0][0]);
  }
  return cluster::judge_clocks(best, hosts, uncertainty);
}

// @collective. The first rank of each node sends to that of the next one, all at once.
std::optional<Finding> check_network(Context& context) {
  const comm::Topology& topology = context.session().topology();
  if (topology.num_nodes < 2) return std::nullopt;
  comm::Communicator& world = context.world();
  const auto first = [&](int node) {
    return topology.first_rank[static_cast<std::size_t>(node % topology.num_nodes)];
  };
  const auto rank = static_cast<int>(world.rank().value);
  const bool leads = rank == first(topology.node);
  const auto seconds_for = [&](std::size_t bytes) {
    std::vector<comm::Message> out;
    if (leads) out.push_back({Rank(first(topology.node + 1)), comm::ByteVector(bytes)});
    world.barrier("doctor: network");
    const auto start = std::chrono::steady_clock::now();
    world.exchange(std::move(out), "doctor: network");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  constexpr std::size_t kBytes = 32U << 20U;
  std::array<double, 2> least{1e9, 1e9};
  for (int round = 0; round < 5; ++round) {
    least[0] = std::min(least[0], seconds_for(8));
    least[1] = std::min(least[1], seconds_for(kBytes));
  }
  cluster::Link link;
  const auto all = comm::all_gather_values(world, least, "network");
  const std::string device = cluster::fast_network_device();
  const auto hosts = hosts_of_ranks(world);
  link.bytes_per_s = 1e30;
  for (int node = 0; node < topology.num_nodes; ++node) {
    // Who receives knows: a send may end before it has arrived.
    const auto& [small, large] = all[static_cast<std::size_t>(first(node + 1))];
    const double rate = static_cast<double>(kBytes) / std::max(large - small, 1e-6);
    link.latency_s = std::max(link.latency_s, small);
    if (rate >= link.bytes_per_s) continue;
    link.bytes_per_s = rate;
    link.slowest = fmt::format("{} to {}", hosts[static_cast<std::size_t>(first(node))],
                               hosts[static_cast<std::size_t>(first(node + 1))]);
  }
  return cluster::judge_network(link, device);
}

// Writes this rank's part of one dataset collectively and reads it back. Throws Io.
void write_and_read(comm::Communicator& world, const std::string& path) {
  constexpr hsize_t kCount = 1U << 17U;  // a mebibyte of doubles for each rank
  const ckpt::h5::Quiet quiet;
  const auto rank = static_cast<hsize_t>(world.rank().value);
  const hsize_t total = kCount * static_cast<hsize_t>(world.size());
  std::vector<double> values(kCount, static_cast<double>(rank) + 0.5);
  const ckpt::h5::Properties access(H5Pcreate(H5P_FILE_ACCESS));
  const MPI_Comm native = *static_cast<const MPI_Comm*>(world.native());
  ckpt::h5::check(H5Pset_fapl_mpio(access.get(), native, MPI_INFO_NULL), "H5Pset_fapl_mpio", path);
  const ckpt::h5::Properties together(H5Pcreate(H5P_DATASET_XFER));
  ckpt::h5::check(H5Pset_dxpl_mpio(together.get(), H5FD_MPIO_COLLECTIVE), "H5Pset_dxpl_mpio", path);
  ckpt::h5::File file;
  world.agree("doctor: create a file together", [&] {
    file = ckpt::h5::File(ckpt::h5::check_id(
        H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), "H5Fcreate", path));
  });
  const ckpt::h5::Space all(H5Screate_simple(1, &total, nullptr));
  const ckpt::h5::Space mine(H5Screate_simple(1, &kCount, nullptr));
  const hsize_t start = rank * kCount;
  H5Sselect_hyperslab(all.get(), H5S_SELECT_SET, &start, nullptr, &kCount, nullptr);
  const ckpt::h5::Dataset dataset(
      ckpt::h5::check_id(H5Dcreate2(file.get(), "x", H5T_NATIVE_DOUBLE, all.get(), H5P_DEFAULT,
                                    H5P_DEFAULT, H5P_DEFAULT),
                         "H5Dcreate2", path));
  ckpt::h5::check(H5Dwrite(dataset.get(), H5T_NATIVE_DOUBLE, mine.get(), all.get(), together.get(),
                           values.data()),
                  "H5Dwrite", path);
  std::vector<double> back(kCount);
  ckpt::h5::check(
      H5Dread(dataset.get(), H5T_NATIVE_DOUBLE, mine.get(), all.get(), together.get(), back.data()),
      "H5Dread", path);
  if (back != values) throw Error(ErrorKind::kCorrupt, "what was read is not what was written");
}

// @collective.
Findings check_hdf5(Context& context, const Arguments& arguments) {
  const std::string path = (arguments.folder / ".trireme-doctor.h5").string();
  const auto start = std::chrono::steady_clock::now();
  Findings findings;
  try {
    const Patience patience(context, "parallel HDF5", arguments.patience);
    write_and_read(context.world(), path);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (context.world().is_root()) {
      findings.push_back(
          {"parallel HDF5", seconds > 20 ? Severity::kWarning : Severity::kGood,
           fmt::format("{} MiB written together and read in {:.2f} s", context.world().size(),
                       seconds),
           seconds > 20 ? "leave checkpoint.driver at direct on this file system" : ""});
    }
  } catch (const Error& error) {
    findings.push_back({"parallel HDF5",
                        Severity::kWarning,
                        fmt::format("{} {}", error.message, error.cause.substr(0, 200)),
                        "checkpoint.driver mpiio will not work in this folder; direct may",
                        {host_name()}});
  }
  context.world().barrier("doctor: hdf5");
  if (context.world().is_root()) {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
  return findings;
}

// @collective. Whether a lock that rank 0 holds keeps other nodes out.
Findings check_locks_between_nodes(Context& context, const fs::path& folder) {
  const comm::Topology& topology = context.session().topology();
  if (topology.num_nodes < 2) return {};
  comm::Communicator& world = context.world();
  const fs::path path = folder / ".trireme-doctor.lock";
  int descriptor = -1;
  if (world.is_root()) {
    descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor >= 0 && ::flock(descriptor, LOCK_EX | LOCK_NB) != 0) ::close(descriptor);
  }
  world.barrier("doctor: lock held");
  Findings findings;
  const auto rank = static_cast<int>(world.rank().value);
  if (rank == topology.first_rank[static_cast<std::size_t>(topology.node)] && rank != 0) {
    const int other = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (other < 0) {
      findings.push_back({"shared folder",
                          Severity::kFault,
                          "a file that rank 0 made is not seen in the run's folder",
                          "put run.dir on a file system that all nodes share",
                          {host_name()}});
    } else if (::flock(other, LOCK_EX | LOCK_NB) == 0) {
      findings.push_back({"shared folder",
                          Severity::kWarning,
                          "a lock that another node holds is not seen",
                          "keep two jobs from one run's folder yourself (Lustre: mount -o flock)",
                          {host_name()}});
    } else {
      findings.push_back({"shared folder",
                          Severity::kGood,
                          "files and locks of other nodes are seen",
                          "",
                          {host_name()}});
    }
    if (other >= 0) ::close(other);
  }
  world.barrier("doctor: lock tried");
  if (world.is_root()) {
    if (descriptor >= 0) ::close(descriptor);
    ::unlink(path.c_str());
  }
  return findings;
}

// @collective.
bool none_at_fault(const Findings& findings, comm::Communicator& world) {
  const int mine = cluster::exit_code_of(findings);
  const auto all = comm::all_gather_values(world, mine, "faults so far");
  return std::ranges::all_of(all, [](int code) { return code == 0; });
}

int examine(Context& context, const Arguments& arguments) {
  comm::Communicator& world = context.world();
  const auto hosts = hosts_of_ranks(world);
  Findings mine;
  const auto add = [&](Findings more) { mine.insert(mine.end(), more.begin(), more.end()); };
  if (world.is_root()) {
    mine.push_back(mpi_library());
    mine.push_back({"transport", Severity::kGood, settings_of_transport(context.environment())});
  }
  if (context.session().node().local_rank() == 0) {
    world.set_timeout(std::chrono::duration<double>(arguments.patience));
    add(cluster::check_node(context.environment(), arguments.folder, build::kNccl != "none"));
  }
  world.set_timeout(std::chrono::duration<double>(arguments.patience));
  add(check_windows(context));
  const Findings shared = check_locks_between_nodes(context, arguments.folder);
  add(shared);
  const Finding clocks = check_clocks(world, hosts);
  const auto network = check_network(context);
  if (none_at_fault(shared, world)) add(check_hdf5(context, arguments));
  const auto rates = comm::all_gather_values(
      world, train::measure_gemm_peak(c10::ScalarType::BFloat16), "product rates");
  if (world.is_root()) {
    add({clocks, cluster::judge_products(rates, hosts)});
    if (network) mine.push_back(*network);
  }
  const Findings all = cluster::merged(gather(mine, world));
  const int code = cluster::exit_code_of(all);  // rank 0's counts: the others see nothing
  if (world.is_root()) {
    const auto num_nodes = static_cast<std::size_t>(context.session().topology().num_nodes);
    fmt::print("{}{}",
               arguments.json ? cluster::to_json(all, num_nodes) : cluster::to_text(all, num_nodes),
               arguments.json ? "\n" : "");
    std::fflush(stdout);
  }
  return comm::all_gather_values(world, code, "the verdict")[0];
}

}  // namespace

void add_doctor(Program program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.cli.add_subcommand(
      "doctor", "try what a run needs, on all nodes of a job, and say how to mend what fails");
  command->add_option("--folder", arguments->folder, "where runs will be (run.dir)")
      ->capture_default_str();
  command
      ->add_option("--patience", arguments->patience,
                   "seconds after which something that hangs is a fault")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "one JSON object on standard output");
  command->footer(
      "Alone it looks at this node; under srun, mpirun or mpiexec at all of them together.");
  command->callback([program, arguments] {
    program.action = [program, arguments] {
      return run_in_context(program.argc, program.argv,
                            [&](Context& context) { return examine(context, *arguments); });
    };
  });
}

}  // namespace trireme::app
