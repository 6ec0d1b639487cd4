// Text from a checkpoint: one process, the model whole in fp32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace trireme::train {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // anything that ckpt::resolve takes
  std::string prompt;
  std::int64_t tokens = 200;
  double temperature = 1.0;  // 0 = greedy: always the likeliest token
  std::int64_t top_k = 0;    // draw among the k likeliest tokens; 0 = among all
  std::uint64_t seed = 0;    // the same seed gives the same text
};

// Calls `emit` with each piece of text as it comes, the prompt first, once the model is loaded. Throws Config for
// options that make no sense, Corrupt or Io when the checkpoint cannot be read.
void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit);

}  // namespace trireme::train
