#include "trireme/data/batches.hpp"

#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace trireme::data {
namespace {

// Sample i is i * 100, i * 100 + 1, ...
class Numbered final : public Dataset {
 public:
  std::uint64_t num_samples() const override { return 10; }
  std::int64_t sequence_length() const override { return 3; }
  std::int64_t vocabulary_size() const override { return 1000; }
  void read(std::uint64_t index, std::span<std::int64_t> tokens) const override {
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      tokens[t] = static_cast<std::int64_t>(index * 100 + t);
    }
  }
};

struct Batch {
  std::vector<std::int64_t> inputs = std::vector<std::int64_t>(6, -1);
  std::vector<std::int64_t> targets = std::vector<std::int64_t>(6, -1);
  bool operator==(const Batch&) const = default;
};

Batch read(const Batches& batches, std::uint64_t position, std::int64_t m) {
  Batch batch;
  batches.read(position, m, {batch.inputs, batch.targets});
  return batch;
}

Batches batches(bool shuffle) {
  return {std::make_shared<Numbered>(), SampleOrder(10, 42, shuffle), 2};
}

TEST(Batches, targets_are_the_inputs_one_token_on) {
  const Batch batch = read(batches(false), 4, 1);
  EXPECT_EQ(batch.inputs, (std::vector<std::int64_t>{600, 601, 602, 700, 701, 702}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{601, 602, 603, 701, 702, 703}));
}

TEST(Batches, micro_batch_m_of_a_step_is_micro_batch_0_at_its_position) {
  const Batches shuffled = batches(true);
  for (std::int64_t m = 0; m < 8; ++m) {
    EXPECT_EQ(read(shuffled, 6, m), read(shuffled, 6 + 2 * static_cast<std::uint64_t>(m), 0));
  }
}

TEST(Batches, go_on_across_the_end_of_an_epoch) {
  const Batches shuffled = batches(true);
  const Batch batch = read(shuffled, 9, 0);
  const SampleOrder& order = shuffled.order();
  EXPECT_EQ(batch.inputs[0], static_cast<std::int64_t>(order.sample_at(9) * 100));
  EXPECT_EQ(batch.inputs[3], static_cast<std::int64_t>(order.sample_at(10) * 100));
}

TEST(Batches, refuse_spans_of_another_size_and_impossible_batches) {
  std::vector<std::int64_t> six(6);
  std::vector<std::int64_t> five(5);
  EXPECT_THROW(batches(true).read(0, 0, {six, five}), Error);
  EXPECT_THROW(batches(true).read(0, -1, {six, six}), Error);
  EXPECT_THROW(Batches(std::make_shared<Numbered>(), SampleOrder(10, 1), 0), Error);
  EXPECT_THROW(Batches(nullptr, SampleOrder(10, 1), 1), Error);
}

}  // namespace
}  // namespace trireme::data
