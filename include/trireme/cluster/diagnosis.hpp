// What `trireme doctor` finds: one finding for each thing that was tried, with what to do about it.
// The judgements are pure functions over what was measured; reading this node is apart.
#pragma once

#include "trireme/base/environment.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

enum class Severity { kGood, kNote, kWarning, kFault };

struct Finding {
  std::string check;  // "shared memory"
  Severity severity = Severity::kGood;
  std::string text;                     // what was found, with its numbers
  std::string remedy = {};              // empty where nothing is to be done
  std::vector<std::string> hosts = {};  // where; the report leaves it out when it is everywhere
};

using Findings = std::vector<Finding>;

// Puts findings that say the same into one, with all their hosts; the order of checks stays.
Findings merged(const Findings& findings);

// Returns the report for people; `num_hosts`: of the whole job.
std::string to_text(const Findings& findings, std::size_t num_hosts);
// Returns one JSON object with every finding and the counts.
std::string to_json(const Findings& findings, std::size_t num_hosts);

// Returns 0, or Environment's exit code when something is a fault.
int exit_code_of(const Findings& findings);

// For messages between ranks.
std::string encode(const Findings& findings);
Findings decode_findings(std::string_view text);

// ---- judgements ----

// /dev/shm of `size` bytes of which `free` are left, on a machine with `memory`.
Finding judge_shared_memory(std::uint64_t size, std::uint64_t free, std::uint64_t memory);

// The limits of a process (ulimit); nothing stands for unlimited.
struct Limits {
  std::optional<std::uint64_t> files, locked, address_space, stack;
};
Findings judge_limits(const Limits& limits, bool has_fast_network);

// Clocks of the nodes in seconds after the first one's, each known to within `uncertainty`.
Finding judge_clocks(const std::vector<double>& ahead, const std::vector<std::string>& hosts,
                     double uncertainty);

// Rates of matrix products of all ranks, in operations a second, with their hosts.
Finding judge_products(const std::vector<double>& rates, const std::vector<std::string>& hosts);

// Messages between neighbouring nodes: the slowest pair. `device`: a fast network's that the nodes
// have ("mlx5_0"); empty without one.
struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;
  std::string slowest;  // "n1 to n2"
};
Finding judge_network(const Link& link, const std::string& device);

// ---- this node ----

// Returns the name of an InfiniBand, Slingshot or similar device of this node, or nothing.
std::string fast_network_device();

// Tries what can be tried without other ranks: limits, shared memory, processors, GPUs, NCCL, and in
// the run's folder free space, O_DIRECT and locks. Leaves nothing behind.
Findings check_node(const Environment& environment, const std::filesystem::path& folder,
                    bool built_with_cuda);

}  // namespace trireme::cluster
