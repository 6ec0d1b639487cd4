// Which rank sees which samples, against accelerate's own answers (tests/data/loader/README.md).
#include "trireme/data/shards.hpp"

#include "support/golden.hpp"
#include "trireme/base/error.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace trireme::data {
namespace {

using nlohmann::json;
using Batch = std::vector<std::uint64_t>;

json cases(const std::string& name) {
  std::ifstream file(testing::test_data() / "data" / "loader" / name);
  return json::parse(file)["cases"];
}

bool has_quirk(const json& c, const std::string& name) {
  const auto quirks = c.value("quirk", std::vector<std::string>{});
  return std::find(quirks.begin(), quirks.end(), name) != quirks.end();
}

ShardOptions options_of(const json& c, bool dispatch) {
  return {.num_ranks = c["n"],
          .batch_size = c["batch_size"],
          .split_batches = c["split"],
          .even_batches = c.value("even", true),
          .drop_last = c["drop_last"],
          .dispatch = dispatch};
}

std::uint64_t length_of(const json& c) {
  return c.contains("order") ? c["order"].size() : c["length"].get<std::uint64_t>();
}

// Everything that a rank sees, skipping included.
std::vector<Batch> seen(const Shards& shards, Rank rank, const json& c, bool dispatch) {
  std::vector<Batch> batches;
  const std::int64_t skip = c.value("skip", 0);
  for (std::int64_t step = skip; step < shards.num_batches(rank, length_of(c)); ++step) {
    // Maps are read from where skipping ends; streams from their start.
    const bool read_later = dispatch && c.value("dataset", "map") == "map";
    Batch batch = shards.batch(rank, step, length_of(c), read_later ? skip : 0);
    if (c.contains("order")) {
      for (std::uint64_t& sample : batch) sample = c["order"][sample];
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

// What is gathered of the last step once repeated samples are cut off.
void expect_gathered(const json& c, const Shards& shards,
                     const std::vector<std::vector<Batch>>& ranks) {
  const std::int64_t last = shards.num_steps(length_of(c)) - 1;
  if (!c.contains("gathered_last") || c["gathered_last"].is_null() || ranks[0].empty()) return;
  Batch all;
  for (const auto& batches : ranks)
    all.insert(all.end(), batches.back().begin(), batches.back().end());
  all.resize(static_cast<std::size_t>(
      shards.tail() == Tail::kDrop ? std::ssize(all) : shards.num_fresh(last, length_of(c))));
  Batch expected = c["gathered_last"].get<Batch>();
  if (has_quirk(c, "duplicates_kept")) {
    // Fewer than theirs, each once.
    EXPECT_EQ(all, Batch(expected.begin(), expected.begin() + std::ssize(all))) << c;
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << c;
    return;
  }
  EXPECT_EQ(all, expected) << c;
}

void expect_same(const json& c, bool dispatch) {
  if (c.value("error", "") == "batch_size_not_multiple_of_n") {
    EXPECT_THROW(Shards{options_of(c, dispatch)}, Error) << c;
    return;
  }
  if (has_quirk(c, "empty_batches") && c["split"] && c["batch_size"] == 1) {
    EXPECT_THROW(Shards{options_of(c, dispatch)}, Error) << c;
    return;
  }
  // One sample cannot be split; theirs says so only when there is one to split.
  if (c["split"] && c["batch_size"].get<std::int64_t>() % c["n"].get<std::int64_t>() != 0) {
    EXPECT_TRUE(c.contains("error")) << c;
    return;
  }
  const Shards shards(options_of(c, dispatch));
  std::vector<std::vector<Batch>> ranks;
  for (int r = 0; r < shards.num_ranks(); ++r) ranks.push_back(seen(shards, Rank(r), c, dispatch));
  if (has_quirk(c, "skip_counts_source_batches")) return;  // steps_are_skipped... below
  if (has_quirk(c, "nothing_to_yield_raises")) {
    for (const auto& batches : ranks) EXPECT_TRUE(batches.empty()) << c;
    return;
  }
  if (has_quirk(c, "empty_batches")) {
    for (const auto& batches : ranks) EXPECT_FALSE(batches.at(0).empty()) << c;
    return;
  }
  EXPECT_EQ(json(ranks), c["ranks"]) << c;
  if (c.contains("len")) {
    for (int r = 0; r < shards.num_ranks(); ++r) {
      const auto rank = static_cast<std::size_t>(r);
      const std::size_t theirs = c["len"][rank];
      // Their loaders promise some ranks batches that these then do not get.
      if (theirs == c["ranks"][rank].size()) {
        EXPECT_EQ(theirs, ranks[rank].size()) << c;
      }
    }
  }
  expect_gathered(c, shards, ranks);
}

std::size_t check_all(const std::string& name, bool dispatch = false) {
  const json all = cases(name);
  for (const json& c : all) {
    expect_same(c, dispatch);
    if (::testing::Test::HasFailure()) return 0;
  }
  return all.size();
}

TEST(Shards, deal_maps_as_accelerate_does) { EXPECT_EQ(check_all("shard.json"), 1530U); }
TEST(Shards, deal_shuffled_maps_as_accelerate_does) { EXPECT_EQ(check_all("shuffled.json"), 416U); }
TEST(Shards, deal_streams_as_accelerate_does) { EXPECT_EQ(check_all("iterable.json"), 834U); }
TEST(Shards, skip_as_accelerate_does) { EXPECT_EQ(check_all("skip.json"), 880U); }
TEST(Shards, dispatch_as_accelerate_does) { EXPECT_EQ(check_all("dispatch.json", true), 1392U); }
TEST(Shards, skip_dispatched_as_accelerate_does) {
  EXPECT_EQ(check_all("dispatch_skip.json", true), 880U);
}

TEST(Shards, deal_batches_of_any_size_as_accelerate_does) {
  const json all = cases("variable.json");
  EXPECT_EQ(all.size(), 64U);
  for (const json& c : all) {
    const int n = c["n"];
    const auto batches = c["batches"].get<std::vector<Batch>>();
    std::vector<std::vector<Batch>> ranks(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) {
      for (std::int64_t step = 0;; ++step) {
        const auto batch = dealt_batch(Rank(r), step, std::ssize(batches), n, c["even"]);
        if (!batch) break;
        ranks[static_cast<std::size_t>(r)].push_back(batches[static_cast<std::size_t>(*batch)]);
      }
    }
    EXPECT_EQ(json(ranks), c["ranks"]) << c;
  }
}

TEST(Shards, every_sample_is_fresh_once) {
  for (const bool dispatch : {false, true}) {
    for (std::uint64_t length = 0; length < 60; ++length) {
      const Shards shards({.num_ranks = 3, .batch_size = 4, .dispatch = dispatch});
      std::vector<std::uint64_t> fresh;
      for (std::int64_t step = 0; step < shards.num_steps(length); ++step) {
        Batch all;
        for (int r = 0; r < 3; ++r) {
          const Batch batch = shards.batch(Rank(r), step, length);
          all.insert(all.end(), batch.begin(), batch.end());
        }
        all.resize(static_cast<std::size_t>(shards.num_fresh(step, length)));
        fresh.insert(fresh.end(), all.begin(), all.end());
      }
      ASSERT_EQ(fresh.size(), length);
      for (std::uint64_t i = 0; i < length; ++i) EXPECT_EQ(fresh[i], i);
    }
  }
}

TEST(Shards, steps_are_skipped_and_not_batches_of_a_reader) {
  const Shards shards({.num_ranks = 2, .batch_size = 2, .dispatch = true});
  EXPECT_EQ(shards.batch(Rank(1), 3, 16, 3), (Batch{14, 15}));
  EXPECT_EQ(shards.num_steps(16), 4);
}

TEST(Shards, refuse_a_batch_of_nothing) {
  EXPECT_THROW(Shards({.batch_size = 0}), Error);
  EXPECT_THROW(Shards({.num_ranks = 2, .batch_size = 1, .split_batches = true}), Error);
}

}  // namespace
}  // namespace trireme::data
