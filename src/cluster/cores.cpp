#include "trireme/cluster/cores.hpp"

#include "trireme/cluster/identity.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace trireme::cluster {

namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Version 2: "150000 100000" or "max 100000".
std::optional<double> unified_quota(const std::filesystem::path& group) {
  std::ifstream stream(group / "cpu.max");
  double quota = 0;
  double period = 0;
  if (stream >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// Version 1: two files; a quota of -1 means none.
std::optional<double> legacy_quota(const std::filesystem::path& group) {
  std::ifstream quota_stream(group / "cpu.cfs_quota_us");
  std::ifstream period_stream(group / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_stream >> quota && period_stream >> period && quota > 0 && period > 0)
    return quota / period;
  return std::nullopt;
}

template <class Quota>
void lower_to(std::optional<double>& lowest, const std::filesystem::path& root,
              std::filesystem::path group, Quota quota) {
  // A group may use no more than each of its parents. In a container the path may name groups that
  // are not visible there; the loop ends at the mount's own root, which then is the container's
  // group.
  for (;;) {
    if (const auto found = quota(root / group)) lowest = std::min(lowest.value_or(*found), *found);
    if (group.empty()) return;
    group = group.parent_path();
  }
}

// Whether "cpu,cpuacct" names the controller "cpu".
bool names_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const auto comma = controllers.find(',');
    if (controllers.substr(0, comma) == "cpu") return true;
    if (comma == std::string_view::npos) break;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

std::vector<int> affinity_mask() {
  std::vector<int> ids;
  // The kernel refuses a mask that is too small for the machine, so grow it.
  for (std::size_t cpus = 1024; cpus <= (1U << 20U); cpus *= 2) {
    std::vector<cpu_set_t> mask(std::max<std::size_t>(1, CPU_ALLOC_SIZE(cpus) / sizeof(cpu_set_t)));
    const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) {
      for (std::size_t cpu = 0; cpu < cpus; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, mask.data())) ids.push_back(static_cast<int>(cpu));
      }
      break;
    }
    if (errno != EINVAL) break;
  }
  return ids;
}

int affinity_cores() { return std::max(1, static_cast<int>(affinity_mask().size())); }

std::optional<double> cgroup_quota(const std::filesystem::path& mount,
                                   std::string_view membership) {
  std::optional<double> lowest;
  while (!membership.empty()) {
    // "0::/user.slice" (version 2) or "4:cpu,cpuacct:/job" (version 1)
    const auto end = membership.find('\n');
    const std::string_view line = membership.substr(0, end);
    membership.remove_prefix(end == std::string_view::npos ? membership.size() : end + 1);
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string_view::npos ? first : first + 1);
    if (second == std::string_view::npos) continue;
    const std::string controllers(line.substr(first + 1, second - first - 1));
    const std::filesystem::path group =
        std::filesystem::path(line.substr(second + 1)).relative_path();
    if (controllers.empty()) {
      lower_to(lowest, mount, group, unified_quota);
      lower_to(lowest, mount / "unified", group, unified_quota);
    } else if (names_cpu(controllers)) {
      lower_to(lowest, mount / controllers, group, legacy_quota);
      lower_to(lowest, mount / "cpu", group, legacy_quota);
    }
  }
  return lowest;
}

int usable_cores() {
  const int cores = affinity_cores();
  const auto quota = cgroup_quota("/sys/fs/cgroup", content("/proc/self/cgroup"));
  if (!quota) return cores;
  // Rounded down: a thread more than the quota is stopped for part of every period, and its team
  // waits for it.
  return std::clamp(static_cast<int>(std::floor(std::min(*quota, 1e6))), 1, cores);
}

}  // namespace trireme::cluster
