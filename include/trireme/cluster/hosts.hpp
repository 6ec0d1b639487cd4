// Lists of hosts as schedulers write them: Slurm's compressed form, PBS's node file, LSF's
// variables. Pure text in, values out, and back; what is malformed is refused with the text named.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

// A host and how many ranks the scheduler gives it.
struct HostSlots {
  std::string host;
  int slots = 1;
  bool operator==(const HostSlots&) const = default;
};

// Returns the hosts of "n[1-3,07-10],gpu[0-1]-ib,login" in that order. Throws Environment when the
// text is no such list or names more than a million hosts.
std::vector<std::string> expand_hosts(std::string_view text);

// Returns the shortest list that expand_hosts turns back into exactly these hosts in this order:
// "n[1-2,4],login".
std::string compress_hosts(const std::vector<std::string>& hosts);

// Returns the numbers of "2(x3),1", one for each node: 2 2 2 1. Throws Environment when it is no
// such list.
std::vector<int> expand_counts(std::string_view text);

// Returns the hosts of a node file: a line for each slot, or "name N". Repeats need not be
// neighbours; the order of first appearance is kept.
std::vector<HostSlots> parse_node_file(std::string_view text);

// Returns the hosts of LSB_HOSTS ("n1 n1 n2"), LSB_MCPU_HOSTS ("n1 2 n2 1") or bjobs
// ("2*n1:n2"), told apart by their form.
std::vector<HostSlots> parse_lsf_hosts(std::string_view text);

// Returns a node file: a line for each slot.
std::string node_file(const std::vector<HostSlots>& hosts);

// Returns "n1:2,n2:1", as mpirun --host takes it.
std::string host_argument(const std::vector<HostSlots>& hosts);

// Returns the slots of all hosts together.
int total_slots(const std::vector<HostSlots>& hosts);

}  // namespace trireme::cluster
