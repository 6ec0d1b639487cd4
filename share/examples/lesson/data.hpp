// What both loops of the lesson train, and on what.
#pragma once

#include <torch/torch.h>

// Sample i is a piece of a wave and what comes next.
struct Waves : torch::data::datasets::Dataset<Waves> {
  torch::data::Example<> get(std::size_t i) override {
    const auto t = torch::arange(17, torch::kFloat) * 0.3F + 0.1F * static_cast<float>(i);
    const auto wave = torch::sin(t);
    return {wave.slice(0, 0, 16), wave.slice(0, 16, 17)};
  }
  std::optional<std::size_t> size() const override { return 64; }
};

inline torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 1));
}
