#include "trireme/cluster/placement.hpp"

#include "trireme/base/error.hpp"
#include "trireme/cluster/hosts.hpp"
#include "trireme/obs/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace trireme::cluster {

namespace {

using Numbers = std::set<int>;

Numbers parts(const Machine& machine, const std::vector<int>& processors, int Processor::*part) {
  Numbers found;
  for (const Processor& processor : machine.processors) {
    if (std::ranges::binary_search(processors, processor.id)) found.insert(processor.*part);
  }
  return found;
}

std::string listed(const Numbers& numbers) {
  return numbers.empty() ? "-" : compress_numbers({numbers.begin(), numbers.end()});
}

std::string plural(std::size_t count, const char* word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

// "local ranks 0-3", "local rank 1".
std::string seats_text(const Numbers& local_ranks) {
  return fmt::format("local rank{} {}", local_ranks.size() == 1 ? "" : "s", listed(local_ranks));
}

std::vector<std::vector<std::string>> rows_of(const Node& node) {
  std::vector<std::vector<std::string>> rows;
  for (const Seat& seat : node.seats) {
    const Numbers numa = parts(node.machine, seat.processors, &Processor::numa);
    std::string near;
    for (const Gpu& gpu : node.machine.gpus) {
      if (numa.contains(gpu.numa)) near += (near.empty() ? "" : " ") + gpu.address;
    }
    rows.push_back({std::to_string(seat.local_rank), compress_numbers(seat.processors),
                    listed(parts(node.machine, seat.processors, &Processor::core)), listed(numa),
                    std::to_string(seat.threads), seat.devices.empty() ? "-" : seat.devices,
                    near.empty() ? "-" : near});
  }
  return rows;
}

struct Group {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> hosts;
  std::vector<int> first_ranks;
};

// Nodes with the same rows, in the order of their first.
std::vector<Group> alike(const std::vector<Node>& nodes) {
  std::vector<Group> groups;
  std::map<std::vector<std::vector<std::string>>, std::size_t> known;
  for (const Node& node : nodes) {
    auto rows = rows_of(node);
    const auto [place, added] = known.emplace(rows, groups.size());
    if (added) groups.push_back({std::move(rows), {}, {}});
    groups[place->second].hosts.push_back(node.host);
    groups[place->second].first_ranks.push_back(node.seats.empty() ? 0 : node.seats[0].rank);
  }
  return groups;
}

// ---- warnings ----

using Say = std::function<void(std::string)>;
using ByMask = std::map<std::vector<int>, std::vector<const Seat*>>;

ByMask by_mask(const Node& node) {
  ByMask groups;
  for (const Seat& seat : node.seats) groups[seat.processors].push_back(&seat);
  return groups;
}

Numbers local_ranks(const std::vector<const Seat*>& seats) {
  Numbers ranks;
  for (const Seat* seat : seats) ranks.insert(seat->local_rank);
  return ranks;
}

// Ranks that may all use the same processors are in each other's way only when these are too few.
void warn_of_crowded_masks(const Node& node, const ByMask& groups, const Say& say) {
  for (const auto& [mask, seats] : groups) {
    if (seats.size() < 2) continue;
    std::size_t threads = 0;
    for (const Seat* seat : seats) threads += static_cast<std::size_t>(seat->threads);
    const Numbers cores = parts(node.machine, mask, &Processor::core);
    if (threads <= cores.size()) continue;
    say(
        fmt::format("{} share {} ({}) with {}: give each its own (srun --cpus-per-task with "
                    "--cpu-bind=cores, mpirun --bind-to core, mpiexec --cpu-bind depth)",
                    seats_text(local_ranks(seats)), plural(cores.size(), "core"),
                    compress_numbers(mask), plural(threads, "thread")));
  }
}

// Cores that ranks with different masks may both use.
void warn_of_overlaps(const Node& node, const ByMask& groups, const Say& say) {
  std::map<int, std::vector<const ByMask::value_type*>> users;
  for (const auto& group : groups) {
    for (const int core : parts(node.machine, group.first, &Processor::core))
      users[core].push_back(&group);
  }
  Numbers cores;
  Numbers ranks;
  for (const auto& [core, masks] : users) {
    if (masks.size() < 2) continue;
    cores.insert(core);
    for (const auto* group : masks) ranks.merge(local_ranks(group->second));
  }
  if (cores.empty()) return;
  say(fmt::format("the masks of {} overlap in {} ({}): two ranks can wait for one core",
                  seats_text(ranks), plural(cores.size(), "core"), listed(cores)));
}

void warn_of_too_many_threads(const Node& node, const Say& say) {
  std::map<std::pair<int, std::size_t>, Numbers> ranks;
  for (const Seat& seat : node.seats) {
    if (static_cast<std::size_t>(seat.threads) > seat.processors.size())
      ranks[{seat.threads, seat.processors.size()}].insert(seat.local_rank);
  }
  for (const auto& [use, who] : ranks) {
    say(fmt::format("{} compute{} with {} on {}: lower run.threads or widen the mask",
                    seats_text(who), who.size() == 1 ? "s" : "",
                    plural(static_cast<std::size_t>(use.first), "thread"),
                    plural(use.second, "processor")));
  }
}

// A mask over two memories whose cores would fit beside one: half of its reads go the long way.
void warn_of_split_memory(const Node& node, const Say& say) {
  std::map<int, Numbers> cores_of;
  for (const Processor& processor : node.machine.processors)
    cores_of[processor.numa].insert(processor.core);
  std::size_t largest = 0;
  for (const auto& [numa, cores] : cores_of) largest = std::max(largest, cores.size());
  Numbers ranks;
  for (const Seat& seat : node.seats) {
    const bool bound = seat.processors.size() < node.machine.processors.size();
    if (bound && parts(node.machine, seat.processors, &Processor::numa).size() > 1 &&
        parts(node.machine, seat.processors, &Processor::core).size() <= largest)
      ranks.insert(seat.local_rank);
  }
  if (ranks.empty()) return;
  say(
      fmt::format("{} may use cores of several memories though one has enough: bind by memory "
                  "(srun --cpu-bind=ldoms, mpirun --map-by numa)",
                  seats_text(ranks)));
}

// ---- text between ranks ----

void require_read(std::istream& stream) { ensure(!stream.fail(), "a placement message is whole"); }

// An empty word would vanish between blanks.
std::string word(const std::string& text) { return "=" + text; }

std::string read_word(std::istream& stream) {
  std::string text;
  stream >> text;
  require_read(stream);
  ensure(text.starts_with('='), "a placement message has its words");
  return text.substr(1);
}

int read_int(std::istream& stream) {
  int value = 0;
  stream >> value;
  require_read(stream);
  return value;
}

}  // namespace

std::string compress_numbers(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (end - i > 1) text += fmt::format("-{}", numbers[end - 1]);
    i = end;
  }
  return text.empty() ? "-" : text;
}

std::string encode(const Seat& seat) {
  std::string devices = seat.devices;
  std::erase_if(devices, [](char c) { return c == ' ' || c == '\t' || c == '\n'; });
  return fmt::format("{} {} {} {} {} {}", seat.rank, seat.local_rank, seat.threads, word(seat.host),
                     word(devices), compress_numbers(seat.processors));
}

Seat decode_seat(std::string_view text) {
  std::istringstream stream{std::string(text)};
  Seat seat;
  seat.rank = read_int(stream);
  seat.local_rank = read_int(stream);
  seat.threads = read_int(stream);
  seat.host = read_word(stream);
  seat.devices = read_word(stream);
  std::string processors;
  stream >> processors;
  require_read(stream);
  if (processors == "-") return seat;
  std::istringstream ranges(processors);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream ends(range);
    const int first = read_int(ends);
    int last = first;
    if (ends.get() == '-') last = read_int(ends);
    for (int id = first; id <= last; ++id) seat.processors.push_back(id);
  }
  return seat;
}

std::string encode(const Machine& machine) {
  std::string text = std::to_string(machine.processors.size());
  for (const Processor& p : machine.processors)
    text += fmt::format(" {} {} {} {}", p.id, p.core, p.numa, p.package);
  text += fmt::format(" {}", machine.gpus.size());
  for (const Gpu& gpu : machine.gpus)
    text += fmt::format(" {} {} {}", word(gpu.address), word(gpu.vendor), gpu.numa);
  return text;
}

Machine decode_machine(std::string_view text) {
  std::istringstream stream{std::string(text)};
  Machine machine;
  for (int left = read_int(stream); left > 0; --left) {
    Processor p;
    p.id = read_int(stream);
    p.core = read_int(stream);
    p.numa = read_int(stream);
    p.package = read_int(stream);
    machine.processors.push_back(p);
  }
  for (int left = read_int(stream); left > 0; --left) {
    Gpu gpu;
    gpu.address = read_word(stream);
    gpu.vendor = read_word(stream);
    gpu.numa = read_int(stream);
    machine.gpus.push_back(std::move(gpu));
  }
  return machine;
}

std::string placement_table(const std::vector<Node>& nodes) {
  std::vector<std::vector<std::string>> table{{"nodes", "first rank", "local rank", "processors",
                                               "cores", "memory", "threads", "shown GPUs",
                                               "near GPUs"}};
  for (const Group& group : alike(nodes)) {
    bool first = true;
    for (const auto& row : group.rows) {
      std::vector<std::string> line{first ? compress_hosts(group.hosts) : "",
                                    first ? compress_numbers(group.first_ranks) : ""};
      line.insert(line.end(), row.begin(), row.end());
      table.push_back(std::move(line));
      first = false;
    }
  }
  return obs::columns(table);
}

std::vector<std::string> placement_warnings(const std::vector<Node>& nodes) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> hosts;
  for (const Node& node : nodes) {
    const Say say = [&](std::string what) {
      auto& where = hosts[what];
      if (where.empty()) order.push_back(what);
      where.push_back(node.host);
    };
    const ByMask groups = by_mask(node);
    warn_of_crowded_masks(node, groups, say);
    warn_of_overlaps(node, groups, say);
    warn_of_too_many_threads(node, say);
    warn_of_split_memory(node, say);
  }
  std::vector<std::string> warnings;
  for (const std::string& what : order)
    warnings.push_back(fmt::format("{}: {}", compress_hosts(hosts[what]), what));
  return warnings;
}

}  // namespace trireme::cluster
