#include "trireme/cluster/placement.hpp"

#include "trireme/base/error.hpp"
#include "trireme/cluster/cores.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace trireme::cluster {
namespace {

std::vector<int> range(int first, int last) {
  std::vector<int> numbers;
  for (int i = first; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

// Two packages with a memory and two GPUs each, four cores each, two hyperthreads to a core: core c
// is the processors c and c + 8.
Machine two_packages() {
  Machine machine;
  for (int id = 0; id < 16; ++id)
    machine.processors.push_back({id, id % 8, id % 8 / 4, id % 8 / 4});
  machine.gpus = {{"0000:01:00.0", "NVIDIA", 0}, {"0000:81:00.0", "NVIDIA", 1}};
  return machine;
}

Node node(const std::vector<std::vector<int>>& masks, int threads = 1, int first_rank = 0,
          const std::string& host = "n1") {
  Node made{host, two_packages(), {}};
  int local = 0;
  for (const auto& mask : masks) {
    made.seats.push_back({first_rank + local, local, threads, host, "", mask});
    ++local;
  }
  return made;
}

std::string warnings(const std::vector<Node>& nodes) {
  std::string text;
  for (const std::string& warning : placement_warnings(nodes)) text += warning + "\n";
  return text;
}

void expect_starts(const std::string& text, const std::string& start) {
  EXPECT_EQ(text.substr(0, start.size()), start);
}

TEST(Placement, says_nothing_where_every_rank_has_its_own_cores) {
  EXPECT_EQ(warnings({node({range(0, 3), range(4, 7)}, 4)}), "");
  EXPECT_EQ(warnings({node({range(0, 15)}, 16)}), "");
  // Unbound, but there is enough for all.
  EXPECT_EQ(warnings({node({range(0, 15), range(0, 15)}, 4)}), "");
}

TEST(Placement, warns_of_ranks_on_the_same_cores) {
  expect_starts(warnings({node({{0, 8}, {0, 8}, {0, 8}})}),
                "n1: local ranks 0-2 share 1 core (0,8) with 3 threads: ");
  expect_starts(warnings({node({range(0, 15), range(0, 15)}, 8)}),
                "n1: local ranks 0-1 share 8 cores (0-15) with 16 threads: ");
}

TEST(Placement, warns_of_masks_that_overlap) {
  EXPECT_EQ(warnings({node({range(0, 2), range(2, 3)})}),
            "n1: the masks of local ranks 0-1 overlap in 1 core (2): two ranks can wait for one "
            "core\n");
  // Two hyperthreads of one core.
  EXPECT_EQ(warnings({node({{0}, {8}, {1}})}),
            "n1: the masks of local ranks 0-1 overlap in 1 core (0): two ranks can wait for one "
            "core\n");
}

TEST(Placement, warns_of_more_threads_than_processors) {
  EXPECT_EQ(
      warnings({node({range(0, 1), range(2, 3)}, 3)}),
      "n1: local ranks 0-1 compute with 3 threads on 2 processors: lower run.threads or widen "
      "the mask\n");
  EXPECT_EQ(warnings({node({{0, 8}}, 2)}), "");
}

TEST(Placement, warns_of_a_mask_over_two_memories) {
  expect_starts(warnings({node({{3, 4}})}),
                "n1: local rank 0 may use cores of several memories though one has enough");
  EXPECT_EQ(warnings({node({range(0, 5)}, 6)}), "");  // one memory has only four cores
}

TEST(Placement, names_all_nodes_with_the_same_fault_in_one_sentence) {
  const std::vector<Node> nodes{node({{0}, {0}}, 1, 0, "n1"), node({{0}, {0}}, 1, 2, "n2"),
                                node({{0}, {1}}, 1, 4, "n3")};
  const auto found = placement_warnings(nodes);
  ASSERT_EQ(found.size(), 1U);
  expect_starts(found[0], "n[1-2]: local ranks 0-1 share 1 core");
}

TEST(Placement, table_has_a_line_for_each_kind_of_seat) {
  std::vector<Node> nodes{node({range(0, 3), range(4, 7)}, 4, 0, "n1"),
                          node({range(0, 3), range(4, 7)}, 4, 2, "n2"),
                          node({range(0, 7)}, 8, 4, "n3")};
  nodes[2].seats[0].devices = "0,1";
  const char* expected =
      R"(nodes   first rank  local rank  processors  cores  memory  threads  shown GPUs                  near GPUs
n[1-2]  0,2                  0         0-3    0-3       0        4           -               0000:01:00.0
                             1         4-7    4-7       1        4           -               0000:81:00.0
n3      4                    0         0-7    0-7     0-1        8         0,1  0000:01:00.0 0000:81:00.0
)";
  EXPECT_EQ(placement_table(nodes), expected);
}

TEST(Placement, travels_as_text) {
  const Seat seat{5, 1, 4, "n2", "0,1", {0, 1, 2, 8, 15}};
  const Seat back = decode_seat(encode(seat));
  EXPECT_EQ(back.rank, 5);
  EXPECT_EQ(back.local_rank, 1);
  EXPECT_EQ(back.threads, 4);
  EXPECT_EQ(back.host, "n2");
  EXPECT_EQ(back.devices, "0,1");
  EXPECT_EQ(back.processors, seat.processors);
  EXPECT_EQ(decode_seat(encode(Seat{})).devices, "");
  EXPECT_EQ(decode_seat(encode(Seat{})).processors, std::vector<int>{});
  const Machine machine = decode_machine(encode(two_packages()));
  EXPECT_EQ(machine.processors.size(), 16U);
  EXPECT_EQ(machine.processors[13].core, 5);
  EXPECT_EQ(machine.processors[13].numa, 1);
  EXPECT_EQ(machine.gpus.at(1).address, "0000:81:00.0");
  EXPECT_EQ(machine.gpus.at(1).numa, 1);
  for (const char* text : {"", "1 2", "1 2 3 n1 = 0", "x 1 1 =n1 = 0"})
    EXPECT_THROW(decode_seat(text), Error) << text;
  EXPECT_THROW(decode_machine("1 0 0 0"), Error);
}

TEST(Placement, numbers_are_compressed) {
  EXPECT_EQ(compress_numbers({0, 1, 2, 7, 9, 10}), "0-2,7,9-10");
  EXPECT_EQ(compress_numbers({}), "-");
}

// hwloc reads a machine that is not this one.
TEST(Machine, has_the_gpus_that_compute_with_the_memory_beside_them) {
  const std::string file = std::string(TRIREME_TEST_DATA) + "/cluster/data/two-packages.xml";
  setenv("HWLOC_XMLFILE", file.c_str(), 1);
  const Machine machine = read_machine(true);
  const Machine without = read_machine(false);
  unsetenv("HWLOC_XMLFILE");
  ASSERT_EQ(machine.processors.size(), 8U);
  EXPECT_EQ(machine.processors[5].core, 2);
  EXPECT_EQ(machine.processors[5].numa, 1);
  EXPECT_EQ(machine.processors[5].package, 1);
  ASSERT_EQ(machine.gpus.size(), 3U);  // not the console's card, nor the network's
  EXPECT_EQ(machine.gpus[0].address, "0000:02:00.0");
  EXPECT_EQ(machine.gpus[0].vendor, "AMD");
  EXPECT_EQ(machine.gpus[0].numa, 0);
  EXPECT_EQ(machine.gpus[2].address, "0000:82:00.0");
  EXPECT_EQ(machine.gpus[2].vendor, "NVIDIA");
  EXPECT_EQ(machine.gpus[2].numa, 1);
  EXPECT_TRUE(without.gpus.empty());
}

TEST(Machine, holds_every_processor_of_this_process) {
  const Machine machine = read_machine();
  const Seat seat = read_seat({{"ROCR_VISIBLE_DEVICES", "3"}}, 0, 0, 1);
  EXPECT_EQ(static_cast<int>(seat.processors.size()), affinity_cores());
  EXPECT_EQ(seat.devices, "3");
  for (const int id : seat.processors) {
    EXPECT_TRUE(std::ranges::any_of(machine.processors, [&](const Processor& p) {
      return p.id == id;
    })) << id;
  }
}

}  // namespace
}  // namespace trireme::cluster
