// Parameter holders shared by the models: they allocate, initialise in place and call one operator.
#pragma once

#include "trireme/model/language_model.hpp"
#include "trireme/model/ops.hpp"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <utility>

namespace trireme::model {

// The residual stream between two blocks: its value is x + delta, added by the next norm in the
// same pass. delta is undefined before the first block.
struct Residual {
  torch::Tensor x_BTC, delta_BTC;
};

// Runs a block, or one tensor's way through a part of it, by way of `how` where there is one.
template <class Block>
Residual run_block(const Recompute& how, const Block& block, Residual residual) {
  if (!how) return block(std::move(residual));
  auto out = how(
      [block](const TensorList& in) -> TensorList {
        Residual result = block(Residual{in[0], in[1]});
        return {result.x_BTC, result.delta_BTC};
      },
      {residual.x_BTC, residual.delta_BTC});
  return {std::move(out[0]), std::move(out[1])};
}
template <class Part>
torch::Tensor run_part(const Recompute& how, const Part& part, torch::Tensor x) {
  if (!how) return part(x);
  return how([part](const TensorList& in) -> TensorList { return {part(in[0])}; },
             {std::move(x)})[0];
}

// Modules below register "weight" and "bias"; weights are drawn from N(0, std), biases start at
// zero, gains at one.
struct Linear : torch::nn::Module {
  Linear(std::int64_t in, std::int64_t out, bool with_bias, ops::Layout layout, double std);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight, bias;
  ops::Layout layout;
};

struct Table : torch::nn::Module {
  Table(std::int64_t rows, std::int64_t width, double std);
  torch::Tensor weight;
};

struct LayerNorm : torch::nn::Module {
  LayerNorm(std::int64_t width, double eps);
  // Adds delta to the stream and returns the normed sum.
  torch::Tensor forward(Residual& residual);

  torch::Tensor weight, bias;
  double eps;
};

struct RmsNorm : torch::nn::Module {
  RmsNorm(std::int64_t width, double eps);
  torch::Tensor forward(Residual& residual);

  torch::Tensor weight;
  double eps;
};

}  // namespace trireme::model
