// Where the ranks of a job sit: which processors each may use, on which cores, memories and beside
// which GPUs. One process of a node describes its machine (hwloc), every rank its own seat; the
// table and the warnings are pure functions over what was gathered.
#pragma once

#include "trireme/base/environment.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

// A processor as the operating system numbers it: with hyperthreads, several to a core.
struct Processor {
  int id = 0;
  int core = 0;  // numbered over the machine
  int numa = 0;
  int package = 0;
};

struct Gpu {
  std::string address;  // on the PCI bus, "0000:3b:00.0"
  std::string vendor;   // "NVIDIA", "AMD" or "Intel"
  int numa = -1;        // -1: near to no memory in particular
};

struct Machine {
  std::vector<Processor> processors;  // by id
  std::vector<Gpu> gpus;              // by address
};

// What one rank tells about itself.
struct Seat {
  int rank = 0;
  int local_rank = 0;
  int threads = 1;  // that it will compute with
  std::string host;
  std::string devices;          // the GPUs that the launcher shows it; empty when it says nothing
  std::vector<int> processors;  // ids of its affinity mask, rising
};

// A node with the seats of its ranks, by local rank.
struct Node {
  std::string host;
  Machine machine;
  std::vector<Seat> seats;
};

// Whether there can be GPUs here: asked first, because looking for devices takes most of hwloc's time
// and of the files that it opens.
bool has_gpu_driver();

// Asks hwloc about this machine: also about what the process itself may not use. Throws Environment
// when hwloc cannot tell.
Machine read_machine(bool with_gpus = has_gpu_driver());

// Returns the seat of this process.
Seat read_seat(const Environment& environment, int rank, int local_rank, int threads);

// One line of text each, for messages between ranks. `decode_...` throw Internal for anything else.
std::string encode(const Seat& seat);
std::string encode(const Machine& machine);
Seat decode_seat(std::string_view text);
Machine decode_machine(std::string_view text);

// Returns a table with a line for each local rank; nodes that look the same share their lines.
std::string placement_table(const std::vector<Node>& nodes);

// Returns a sentence for each thing that will cost speed: ranks on the same cores, more threads than
// processors, a mask over several memories. Sentences that hold for several nodes name them all.
std::vector<std::string> placement_warnings(const std::vector<Node>& nodes);

// Returns "0-7,16" for rising numbers.
std::string compress_numbers(const std::vector<int>& numbers);

}  // namespace trireme::cluster
