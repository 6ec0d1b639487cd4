#include "trireme/base/text.hpp"

#include "trireme/base/units.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace trireme {
namespace {

const std::vector<std::string> kKeys = {"train.global_batch_size", "train.micro_batch_size",
                                        "optimizer.lr", "run.seed"};

TEST(Nearest, suggests_the_key_with_fewest_edits) {
  EXPECT_EQ(nearest("train.global_batchsize", kKeys), "train.global_batch_size");
  EXPECT_EQ(nearest("train.micro_batch_sizes", kKeys), "train.micro_batch_size");
  EXPECT_EQ(nearest("run.sede", kKeys), "run.seed");
  EXPECT_EQ(nearest("optimizer.lr", kKeys), "optimizer.lr");
}

TEST(Nearest, suggests_nothing_far_away) {
  EXPECT_EQ(nearest("zebra", kKeys), std::nullopt);
  EXPECT_EQ(nearest("", kKeys), std::nullopt);
  EXPECT_EQ(nearest("run.seed", {}), std::nullopt);
}

TEST(Nearest, takes_the_first_of_equals) {
  const std::vector<std::string> two = {"lx", "ly"};
  EXPECT_EQ(nearest("lz", two), "lx");
}

TEST(JsonQuoted, escapes_what_json_forbids) {
  EXPECT_EQ(json_quoted("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(json_quoted(std::string("\x01\x1f\0", 3)), "\"\\u0001\\u001f\\u0000\"");
  EXPECT_EQ(json_quoted("\xc3\xa9"), "\"\xc3\xa9\"");
  EXPECT_EQ(json_quoted(""), "\"\"");
}

TEST(Human, is_exact_below_one_kibibyte_and_short_above) {
  EXPECT_EQ(human(Bytes(0)), "0 B");
  EXPECT_EQ(human(Bytes(1023)), "1023 B");
  EXPECT_EQ(human(Bytes(1024)), "1.0 KiB");
  EXPECT_EQ(human(Bytes(1536LL << 20)), "1.5 GiB");
  EXPECT_EQ(human(Bytes(std::numeric_limits<std::int64_t>::max())), "8192.0 PiB");
}

TEST(HumanCount, counts_in_thousands) {
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1.0 K");
  EXPECT_EQ(human_count(10'770'432), "10.8 M");
}

TEST(HumanSeconds, gets_coarser_as_it_gets_longer) {
  EXPECT_EQ(human_seconds(4.24), "4.2s");
  EXPECT_EQ(human_seconds(190), "3m10s");
  EXPECT_EQ(human_seconds(3720), "1h02m");
  EXPECT_EQ(human_seconds(-1), "?");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::infinity()), "?");
}

TEST(HumanSeconds, carries_when_it_rounds_up) {
  EXPECT_EQ(human_seconds(59.94), "59.9s");
  EXPECT_EQ(human_seconds(3599.6), "1h00m");
}

TEST(Strong, is_ordered_and_starts_at_zero) {
  EXPECT_LT(Rank(1), Rank(2));
  EXPECT_EQ(Step().value, 0);
}

}  // namespace
}  // namespace trireme
