// What decides how training goes on, beside weights and moments. Stored in every checkpoint as
// extra/training.
#pragma once

#include "trireme/config/config.hpp"

#include <cstdint>
#include <string>

namespace trireme::train {

struct TrainingState {
  std::int64_t step = 0;     // optimizer steps done, skipped ones included
  std::int64_t skipped = 0;  // steps without an update, because gradients were not finite
  std::int64_t samples = 0;  // consumed over all ranks: the position in the global order of samples
  std::int64_t tokens = 0;
  std::int64_t skips_in_a_row = 0;  // the last of `skipped`
  // State of a schedule that follows a metric and of the loss scaler, as they write it; may be
  // empty.
  std::string schedule;
  std::string loss_scaler;
  // What the position in the data means; a resumed run must agree.
  std::uint64_t seed = 0;
  std::int64_t sequence_length = 0;
  std::int64_t train_samples = 0;  // in the data, an epoch

  std::int64_t updates() const { return step - skipped; }
};

std::string to_json(const TrainingState& state);
// Throws Corrupt when the text is not such a state.
TrainingState training_state_from_json(const std::string& text);

// Throws Config when a run with `now` cannot go on from `stored`: another seed, sequence length or
// data set.
void require_same_data(const TrainingState& stored, const TrainingState& now);

}  // namespace trireme::train
