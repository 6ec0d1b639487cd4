// Text from a checkpoint: one process, the model whole in fp32. What was computed for earlier
// tokens is kept until the context is full, so that a new one costs one token's work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::train {

struct Sampling {
  double temperature = 1.0;         // 0 = greedy: always the likeliest token
  std::int64_t top_k = 0;           // draw among the k likeliest tokens; 0 = among all
  double top_p = 1.0;               // among the likeliest that together have this probability
  double min_p = 0.0;               // among those with this part of the likeliest one's probability
  double repetition_penalty = 1.0;  // above 1: tokens of the text so far are less likely
};

struct GenerateOptions {
  std::filesystem::path checkpoint;  // anything that ckpt::resolve takes
  std::string prompt;
  std::int64_t tokens = 200;  // at most; a token that ends the text ends it earlier
  Sampling sampling;
  std::vector<std::string> stop;  // the text ends before the first of them
  std::uint64_t seed = 0;         // the same seed gives the same text
};

// Calls `emit` with each piece of text as it comes, the prompt first, once the model is loaded.
// Pieces are whole characters where the tokenizer's text is UTF-8. Throws Config for options that make no sense,
// Corrupt or Io when the checkpoint cannot be read.
void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit);

}  // namespace trireme::train
