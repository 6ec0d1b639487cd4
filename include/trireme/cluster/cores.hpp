// How much of the machine belongs to this process. usable_cores() of identity.hpp is the answer;
// the parts are here for tests.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace trireme::cluster {

// Returns the ids of the processors in this process's affinity mask, rising; empty when the kernel
// does not tell.
std::vector<int> affinity_mask();

// Returns the number of processors in this process's affinity mask, at least 1.
int affinity_cores();

// Returns the smallest processor quota of a control group and its parents, in processors (1.5 = 150
// % of one), or nothing when there is none. `mount` is where control groups are mounted
// (/sys/fs/cgroup), `membership` the text of /proc/self/cgroup; versions 1 and 2 are understood.
std::optional<double> cgroup_quota(const std::filesystem::path& mount, std::string_view membership);

}  // namespace trireme::cluster
