#include "trireme/train/state.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trireme::train {

std::string to_json(const TrainingState& state) {
  return nlohmann::ordered_json{{"step", state.step},
                                {"skipped", state.skipped},
                                {"samples", state.samples},
                                {"tokens", state.tokens},
                                {"skips_in_a_row", state.skips_in_a_row},
                                {"schedule", state.schedule},
                                {"loss_scaler", state.loss_scaler},
                                {"seed", state.seed},
                                {"sequence_length", state.sequence_length},
                                {"train_samples", state.train_samples}}
      .dump();
}

TrainingState training_state_from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    TrainingState state;
    json.at("step").get_to(state.step);
    json.at("skipped").get_to(state.skipped);
    json.at("samples").get_to(state.samples);
    json.at("tokens").get_to(state.tokens);
    // Older checkpoints have none of these.
    state.skips_in_a_row = json.value("skips_in_a_row", std::int64_t{0});
    state.schedule = json.value("schedule", std::string());
    state.loss_scaler = json.value("loss_scaler", std::string());
    json.at("seed").get_to(state.seed);
    json.at("sequence_length").get_to(state.sequence_length);
    json.at("train_samples").get_to(state.train_samples);
    return state;
  } catch (const nlohmann::json::exception& exception) {
    Error error(ErrorKind::kCorrupt, "the checkpoint's extra/training cannot be read");
    error.cause = exception.what();
    throw error;
  }
}

void require_same_data(const TrainingState& stored, const TrainingState& now) {
  std::string problems;
  const auto compare = [&](const char* name, auto then, auto today) {
    if (then != today)
      problems += fmt::format("\n  {}: {} in the checkpoint, {} now", name, then, today);
  };
  compare("run.seed", stored.seed, now.seed);
  compare("data.sequence_length", stored.sequence_length, now.sequence_length);
  compare("training samples in the data", stored.train_samples, now.train_samples);
  if (problems.empty()) return;
  throw Error(ErrorKind::kConfig,
              "the checkpoint's position in the data does not fit this configuration:" + problems,
              "set these as they were, or start a new run (another run.name)");
}

}  // namespace trireme::train
