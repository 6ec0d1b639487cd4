#include "trireme/base/environment.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/units.hpp"
#include "trireme/base/version.hpp"
#include "trireme/cluster/identity.hpp"
#include "trireme/cluster/job.hpp"
#include "trireme/cluster/placement.hpp"
#include "trireme/obs/table.hpp"

#include "commands.hpp"
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

namespace trireme::app {

namespace {

struct Section {
  std::string title;
  obs::Rows rows;
};

Section build_section() {
  const auto text = [](std::string_view view) { return std::string(view); };
  return {"build",
          {{"version", text(build::kVersion)},
           {"commit", text(build::kGitCommit)},
           {"compiler", fmt::format("{}, {}", build::kCompiler, build::kBuildType)},
           {"architecture", text(build::kArchitecture)},
           {"MPI", text(build::kMpi)},
           {"LibTorch", text(build::kLibTorch)},
           {"HDF5", text(build::kHdf5)},
           {"Kokkos", text(build::kKokkos)},
           {"NCCL", text(build::kNccl)}}};
}

std::string memory_text() {
  std::ifstream stream("/proc/meminfo");
  std::string name;
  std::string unit;
  std::int64_t kib = 0;
  std::string total = "unknown";
  while (stream >> name >> kib >> unit) {
    if (name == "MemTotal:") total = human(Bytes(kib * 1024));
    if (name == "MemAvailable:")
      return fmt::format("{} of {} free", human(Bytes(kib * 1024)), total);
  }
  return total;
}

Section machine_section() {
  utsname system{};
  uname(&system);
  Section section{
      "machine",
      {{"host", host_name()},
       {"kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
       {"memory", memory_text()},
       {"usable processors", std::to_string(cluster::usable_cores())}}};
  try {
    const cluster::Machine machine = cluster::read_machine();
    int cores = 0;
    int memories = 0;
    for (const cluster::Processor& processor : machine.processors) {
      cores = std::max(cores, processor.core + 1);
      memories = std::max(memories, processor.numa + 1);
    }
    section.rows.emplace_back(
        "processors", fmt::format("{} on {} cores beside {} memories", machine.processors.size(),
                                  cores, memories));
    std::string gpus;
    for (const cluster::Gpu& gpu : machine.gpus)
      gpus += fmt::format("{}{} at {}", gpus.empty() ? "" : ", ", gpu.vendor, gpu.address);
    section.rows.emplace_back("GPUs", gpus.empty() ? "none" : gpus);
  } catch (const Error& error) {
    section.rows.emplace_back("processors", error.message);
  }
  return section;
}

std::string number_text(std::optional<int> value, std::optional<int> all) {
  if (!value) return "unknown";
  return all ? fmt::format("{} of {}", *value, *all) : std::to_string(*value);
}

Section place_section(const Environment& environment) {
  Section section{"place", {}};
  try {
    const cluster::Identity identity = cluster::identify(environment);
    section.rows = {{"launcher", identity.launcher}};
    if (identity.launcher == "none") return section;
    section.rows.emplace_back("rank", number_text(identity.rank, identity.size));
    section.rows.emplace_back("local rank", number_text(identity.local_rank, identity.local_size));
    section.rows.emplace_back("node", number_text(identity.node, identity.nodes));
    section.rows.emplace_back("told by", identity.source);
  } catch (const Error& error) {
    section.rows = {{"contradiction", error.message}, {"remedy", error.hint}};
  }
  return section;
}

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

Section job_section(const Environment& environment) {
  Section section{"job", {}};
  try {
    const auto job = cluster::job_of(environment, read_text);
    if (!job) return {"job", {{"scheduler", "none"}}};
    section.rows = {{"scheduler", job->scheduler}, {"id", job->id}};
    if (!job->name.empty()) section.rows.emplace_back("name", job->name);
    if (job->array_task)
      section.rows.emplace_back("array",
                                fmt::format("task {} of {}", *job->array_task, job->array_id));
    if (job->restarts > 0) section.rows.emplace_back("restarts", std::to_string(job->restarts));
    if (!job->hosts.empty()) {
      section.rows.emplace_back("nodes", std::to_string(job->hosts.size()));
      section.rows.emplace_back("slots", std::to_string(cluster::total_slots(job->hosts)));
      section.rows.emplace_back("hosts", cluster::host_argument(job->hosts));
    }
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto end =
        cluster::job_end(environment, cluster::ask_within(std::chrono::seconds(5)), now);
    section.rows.emplace_back(
        "ends in",
        end ? fmt::format("{} (told by {})", human_seconds(end->unix_time - now), end->source)
            : "unknown");
  } catch (const Error& error) {
    section.rows.emplace_back("contradiction", error.message);
  }
  return section;
}

// What changes how MPI, the network, threads and files behave. Values may hold nothing secret by
// their names.
Section settings_section(const Environment& environment) {
  constexpr std::array<std::string_view, 14> kStarts{
      "TRIREME_", "OMP_",   "OMPI_MCA_", "PMIX_MCA_", "UCX_",  "FI_",  "NCCL_",
      "MPICH_",   "I_MPI_", "HDF5_",     "CUDA_",     "ROCR_", "KMP_", "GLOO_"};
  Section section{"settings in the environment", {}};
  for (const auto& [name, value] : environment) {
    // What mpirun tells its own ranks is no setting of anybody's.
    if (name.starts_with("OMPI_MCA_orte_") || name.starts_with("OMPI_MCA_ess")) continue;
    for (const std::string_view start : kStarts) {
      if (name.starts_with(start)) section.rows.emplace_back(name, value);
    }
  }
  return section;
}

std::string as_json(const std::vector<Section>& sections) {
  std::string text;
  for (const Section& section : sections) {
    std::string fields;
    for (const auto& [name, value] : section.rows)
      fields += fmt::format("{}{}: {}", fields.empty() ? "" : ", ", json_quoted(name),
                            json_quoted(value));
    text +=
        fmt::format("{}{}: {{{}}}", text.empty() ? "" : ", ", json_quoted(section.title), fields);
  }
  return "{" + text + "}";
}

int show(bool json, bool all_ranks) {
  const Environment environment = current_environment();
  if (!all_ranks) {
    // Under a launcher one process speaks for all; a rank that cannot be told speaks too.
    try {
      if (cluster::identify(environment).rank.value_or(0) != 0) return 0;
    } catch (const Error&) {  // what is wrong is part of what is shown
    }
  }
  const std::vector<Section> sections{build_section(), machine_section(),
                                      place_section(environment), job_section(environment),
                                      settings_section(environment)};
  std::string text;
  if (json) {
    text = as_json(sections) + "\n";
  } else {
    for (const Section& section : sections) {
      if (!section.rows.empty()) text += obs::aligned(section.title, section.rows);
    }
  }
  // One system call: lines of several ranks must not mix.
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
  return 0;
}

}  // namespace

void add_env(Program program) {
  struct Arguments {
    bool json = false;
    bool all_ranks = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.cli.add_subcommand(
      "env", "what this build, this machine, this process's place and this job are");
  command->add_flag("--json", arguments->json, "one JSON object on standard output");
  command->add_flag("--all-ranks", arguments->all_ranks, "under a launcher every rank answers");
  command->callback([program, arguments] {
    program.action = [arguments] { return show(arguments->json, arguments->all_ranks); };
  });
}

}  // namespace trireme::app
