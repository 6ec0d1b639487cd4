#include "trireme/cluster/diagnosis.hpp"

#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::cluster {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30U;

TEST(Findings, that_say_the_same_become_one_with_all_hosts) {
  const Findings found = merged({{"a", Severity::kGood, "x", "", {"n1"}},
                                 {"b", Severity::kGood, "y", "", {"n1"}},
                                 {"a", Severity::kGood, "x", "", {"n2"}},
                                 {"a", Severity::kFault, "z", "do", {"n3"}}});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].hosts, (std::vector<std::string>{"n1", "n2"}));
  EXPECT_EQ(found[1].check, "a");
  EXPECT_EQ(found[1].severity, Severity::kFault);
  EXPECT_EQ(found[2].check, "b");
}

TEST(Findings, are_told_to_people_and_programs) {
  const Findings found{{"clocks", Severity::kGood, "equal", "", {"n1", "n2"}},
                       {"disk", Severity::kFault, "full", "free some", {"n2"}}};
  EXPECT_EQ(to_text(found, 2),
            "good     clocks: equal\n"
            "fault    disk: full (on n2)\n"
            "         -> free some\n"
            "1 fault, 0 warnings on 2 nodes\n");
  EXPECT_EQ(to_json(found, 2),
            "{\"nodes\": 2, \"faults\": 1, \"warnings\": 0, \"findings\": [{\"check\": \"clocks\", "
            "\"severity\": \"good\", \"text\": \"equal\", \"remedy\": \"\", \"hosts\": [\"n1\", "
            "\"n2\"]}, "
            "{\"check\": \"disk\", \"severity\": \"fault\", \"text\": \"full\", \"remedy\": \"free "
            "some\", \"hosts\": [\"n2\"]}]}");
  EXPECT_EQ(exit_code_of(found), 69);
  EXPECT_EQ(exit_code_of({found[0]}), 0);
}

TEST(Findings, travel_as_text) {
  const Findings found{{"a", Severity::kWarning, "text\nof lines", "remedy", {"n1", "n2"}},
                       {"b", Severity::kGood, "", "", {}}};
  const Findings back = decode_findings(encode(found));
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0].text, "text\nof lines");
  EXPECT_EQ(back[0].severity, Severity::kWarning);
  EXPECT_EQ(back[0].hosts, found[0].hosts);
  EXPECT_EQ(back[1].hosts.size(), 0U);
  EXPECT_TRUE(decode_findings("").empty());
  EXPECT_THROW(decode_findings("a\x1f"
                               "9\x1f"
                               "b\x1f"
                               "c\x1e"),
               Error);
}

TEST(Judgement, of_shared_memory) {
  EXPECT_EQ(judge_shared_memory(64 * kGiB, 60 * kGiB, 128 * kGiB).severity, Severity::kGood);
  EXPECT_EQ(judge_shared_memory(64U << 20U, 64U << 20U, 128 * kGiB).severity, Severity::kFault);
  EXPECT_EQ(judge_shared_memory(8 * kGiB, 8 * kGiB, 128 * kGiB).severity, Severity::kWarning);
  EXPECT_EQ(judge_shared_memory(64 * kGiB, kGiB, 128 * kGiB).severity, Severity::kWarning);
}

TEST(Judgement, of_limits) {
  EXPECT_EQ(judge_limits({4096, 65536, {}, 8U << 20U}, false).at(0).severity, Severity::kGood);
  EXPECT_EQ(judge_limits({4096, 65536, {}, 8U << 20U}, true).at(0).severity, Severity::kWarning);
  EXPECT_EQ(judge_limits({4096, {}, {}, {}}, true).at(0).severity, Severity::kGood);
  EXPECT_EQ(judge_limits({256, {}, kGiB, 1U << 16U}, false).size(), 3U);
}

TEST(Judgement, of_clocks) {
  EXPECT_EQ(judge_clocks({0, 0.01}, {"n1", "n2"}, 0.001).severity, Severity::kGood);
  // What the measurement cannot tell is no fault.
  EXPECT_EQ(judge_clocks({0, 2}, {"n1", "n2"}, 1.8).severity, Severity::kGood);
  const Finding warning = judge_clocks({0, -2, 1}, {"n1", "n2", "n3"}, 0.1);
  EXPECT_EQ(warning.severity, Severity::kWarning);
  EXPECT_NE(warning.text.find("n2 behind n3"), std::string::npos);
  EXPECT_EQ(judge_clocks({0, 3600}, {"n1", "n2"}, 0.1).severity, Severity::kFault);
}

TEST(Judgement, of_products_names_the_slow_rank) {
  EXPECT_EQ(judge_products({1e11, 0.9e11}, {"n1", "n2"}).severity, Severity::kGood);
  const Finding slow = judge_products({1e11, 1e11, 0.3e11}, {"n1", "n1", "n2"});
  EXPECT_EQ(slow.severity, Severity::kWarning);
  EXPECT_NE(slow.text.find("30 on rank 2 (n2)"), std::string::npos);
}

TEST(Judgement, of_the_network) {
  EXPECT_EQ(judge_network({2e-6, 20e9, "n1 to n2"}, "mlx5_0").severity, Severity::kGood);
  EXPECT_EQ(judge_network({30e-6, 1.1e9, "n1 to n2"}, "").severity, Severity::kGood);
  EXPECT_EQ(judge_network({30e-6, 1.1e9, "n1 to n2"}, "mlx5_0").severity, Severity::kWarning);
  EXPECT_EQ(judge_network({90e-6, 5e7, "n1 to n2"}, "").severity, Severity::kWarning);
}

TEST(Node, is_checked_without_leaving_anything_behind) {
  const trireme::testing::TempDir folder;
  const Findings findings = check_node({}, folder.path(), false);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  for (const char* check : {"limits", "shared memory", "processors", "GPUs", "NCCL", "run folder",
                            "direct writes", "file locks"}) {
    EXPECT_TRUE(std::ranges::any_of(findings, [&](const Finding& f) { return f.check == check; }))
        << check;
  }
  for (const Finding& finding : findings) EXPECT_EQ(finding.hosts, std::vector{host_name()});
}

TEST(Node, names_a_folder_that_cannot_be_written) {
  const Findings findings = check_node({}, "/proc", false);
  const auto found =
      std::ranges::find_if(findings, [](const Finding& f) { return f.check == "run folder"; });
  ASSERT_NE(found, findings.end());
  EXPECT_EQ(found->severity, Severity::kFault);
  EXPECT_EQ(exit_code_of(findings), 69);
}

}  // namespace
}  // namespace trireme::cluster
