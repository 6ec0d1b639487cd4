#include "trireme/train/state.hpp"

#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace trireme::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TrainingState awkward() {
  TrainingState state;
  state.step = 120;
  state.skipped = 3;
  state.samples = std::int64_t{1} << 53;  // and one more: doubles cannot hold it
  state.samples += 1;
  state.tokens = std::numeric_limits<std::int64_t>::max();
  state.seed = std::numeric_limits<std::uint64_t>::max();
  state.sequence_length = 256;
  state.train_samples = 16'000;
  return state;
}

TEST(TrainingState, survives_json_to_the_last_digit) {
  const TrainingState before = awkward();
  const TrainingState after = training_state_from_json(to_json(before));
  EXPECT_EQ(after.step, before.step);
  EXPECT_EQ(after.skipped, before.skipped);
  EXPECT_EQ(after.samples, before.samples);
  EXPECT_EQ(after.tokens, before.tokens);
  EXPECT_EQ(after.seed, before.seed);
  EXPECT_EQ(after.sequence_length, before.sequence_length);
  EXPECT_EQ(after.train_samples, before.train_samples);
  EXPECT_EQ(after.updates(), 117);
  EXPECT_EQ(to_json(after), to_json(before));
}

TEST(TrainingState, that_cannot_be_read_is_damage) {
  std::string without_seed = to_json(awkward());
  without_seed.replace(without_seed.find("\"seed\""), 6, "\"sead\"");
  std::string seed_as_text = to_json(awkward());
  seed_as_text.replace(seed_as_text.find("\"seed\":") + 7, 20, "\"x\"");
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
                                  without_seed, seed_as_text, to_json(awkward()).substr(0, 30)}) {
    try {
      training_state_from_json(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
      EXPECT_NE(error.cause, "");
    }
  }
}

TEST(RequireSameData, accepts_other_counters) {
  TrainingState now = awkward();
  now.step = 0;
  now.samples = 0;
  now.tokens = 0;
  now.skipped = 0;
  EXPECT_NO_THROW(require_same_data(awkward(), now));
}

TEST(RequireSameData, lists_everything_that_differs) {
  TrainingState now = awkward();
  now.seed = 1;
  now.sequence_length = 128;
  now.train_samples = 99;
  try {
    require_same_data(awkward(), now);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_THAT(error.message, HasSubstr("run.seed: 18446744073709551615 in the checkpoint, 1 now"));
    EXPECT_THAT(error.message, HasSubstr("data.sequence_length: 256 in the checkpoint, 128 now"));
    EXPECT_THAT(error.message, HasSubstr("16000 in the checkpoint, 99 now"));
    EXPECT_NE(error.hint, "");
  }
}

TEST(RequireSameData, lists_nothing_else) {
  TrainingState now = awkward();
  now.sequence_length = 128;
  try {
    require_same_data(awkward(), now);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.message, Not(HasSubstr("seed")));
  }
}

}  // namespace
}  // namespace trireme::train
