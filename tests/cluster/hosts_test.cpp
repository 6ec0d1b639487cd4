#include "trireme/cluster/hosts.hpp"

#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

namespace trireme::cluster {
namespace {

using Names = std::vector<std::string>;

TEST(Hosts, expand_as_slurm_writes_them) {
  EXPECT_EQ(expand_hosts(""), Names{});
  EXPECT_EQ(expand_hosts("login"), Names{"login"});
  EXPECT_EQ(expand_hosts("n[1-3]"), (Names{"n1", "n2", "n3"}));
  EXPECT_EQ(expand_hosts("n[1-2],login,gpu[07-10]-ib"),
            (Names{"n1", "n2", "login", "gpu07-ib", "gpu08-ib", "gpu09-ib", "gpu10-ib"}));
  EXPECT_EQ(expand_hosts("n[1,3,008-010]"), (Names{"n1", "n3", "n008", "n009", "n010"}));
  EXPECT_EQ(expand_hosts("r[0-1]c[1-2]"), (Names{"r0c1", "r0c2", "r1c1", "r1c2"}));
  EXPECT_EQ(expand_hosts("n[98-101]"), (Names{"n98", "n99", "n100", "n101"}));
}

TEST(Hosts, refuse_what_is_no_list) {
  for (const char* text : {"n[1-3", "n1-3]", "n[[1]]", "n[3-1]", "n[a-b]", "n[]", "n[1,]", "a,,b",
                           ",", "a b", "n[1-9999999]", "n[1--3]", "n[0-999999][0-9]"})
    EXPECT_THROW(expand_hosts(text), Error) << text;
}

TEST(Hosts, compress_to_what_expands_to_the_same) {
  EXPECT_EQ(compress_hosts({"n1", "n2", "n4", "login"}), "n[1-2,4],login");
  EXPECT_EQ(compress_hosts({"n08", "n09", "n10"}), "n[08-10]");
  EXPECT_EQ(compress_hosts({"n8", "n9", "n10"}), "n[8-10]");
  EXPECT_EQ(compress_hosts({"n1"}), "n1");
  EXPECT_EQ(compress_hosts({}), "");
  for (const Names& names :
       {Names{"n2", "n1"}, Names{"n1", "n1"}, Names{"n9", "n010"}, Names{"a", "b", "a"},
        Names{"r0c1", "r0c2", "r1c1"}, Names{"n1-ib", "n2-ib", "n3-eth"}, Names{"7", "8"},
        Names{"n99", "n100"}, Names{"x12345678901234567890", "x12345678901234567891"}})
    EXPECT_EQ(expand_hosts(compress_hosts(names)), names) << compress_hosts(names);
}

TEST(Hosts, expand_counts_of_tasks) {
  EXPECT_EQ(expand_counts("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(expand_counts("3,1"), (std::vector<int>{3, 1}));
  for (const char* text : {"", "2(x", "2(x)", "2(x3", "a", "2,", ",2", "-1", "2(x99999999)"})
    EXPECT_THROW(expand_counts(text), Error) << text;
}

TEST(Hosts, count_the_lines_of_a_node_file) {
  const std::vector<HostSlots> uneven{{"n1", 2}, {"n2", 1}};
  EXPECT_EQ(parse_node_file("n1\nn1\nn2\n"), uneven);
  EXPECT_EQ(parse_node_file("n1\r\nn2\r\nn1\r\n\n"), uneven);
  EXPECT_EQ(parse_node_file("# hosts\nn1 2\nn2 1"), uneven);
  EXPECT_EQ(parse_node_file(""), std::vector<HostSlots>{});
  EXPECT_THROW(parse_node_file("n1 two"), Error);
  EXPECT_THROW(parse_node_file("n1 2 3"), Error);
  EXPECT_EQ(node_file(uneven), "n1\nn1\nn2\n");
  EXPECT_EQ(host_argument(uneven), "n1:2,n2:1");
  EXPECT_EQ(total_slots(uneven), 3);
}

TEST(Hosts, read_the_three_forms_of_lsf) {
  const std::vector<HostSlots> uneven{{"n1", 2}, {"n2", 1}};
  EXPECT_EQ(parse_lsf_hosts("n1 n1 n2"), uneven);
  EXPECT_EQ(parse_lsf_hosts("n1 2 n2 1"), uneven);
  EXPECT_EQ(parse_lsf_hosts("2*n1:n2"), uneven);
  EXPECT_THROW(parse_lsf_hosts("n1 2 n2 x"), Error);
}

}  // namespace
}  // namespace trireme::cluster
