#include "layers.hpp"

#include <torch/utils.h>

namespace trireme::model {
namespace {

torch::Tensor drawn(torch::IntArrayRef sizes, double std) {
  torch::NoGradGuard no_grad;
  return torch::empty(sizes).normal_(0, std);
}

torch::Tensor filled(std::int64_t width, double value) {
  torch::NoGradGuard no_grad;
  auto values = torch::empty({width});
  return value == 0 ? values.zero_() : values.fill_(value);
}

// Settles the residual with what a fused norm returned.
torch::Tensor take(Residual& residual, std::pair<torch::Tensor, torch::Tensor> sum_and_normed) {
  residual = {std::move(sum_and_normed.first), {}};
  return std::move(sum_and_normed.second);
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, ops::Layout layout_, double std)
    : layout(layout_) {
  const bool in_out = layout == ops::Layout::kInOut;
  weight = register_parameter("weight", drawn({in_out ? in : out, in_out ? out : in}, std));
  if (with_bias) bias = register_parameter("bias", filled(out, 0));
}

torch::Tensor Linear::forward(const torch::Tensor& x) {
  return ops::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, layout);
}

Table::Table(std::int64_t rows, std::int64_t width, double std) {
  weight = register_parameter("weight", drawn({rows, width}, std));
}

LayerNorm::LayerNorm(std::int64_t width, double eps_) : eps(eps_) {
  weight = register_parameter("weight", filled(width, 1));
  bias = register_parameter("bias", filled(width, 0));
}

torch::Tensor LayerNorm::forward(Residual& residual) {
  return take(residual, ops::add_layer_norm(residual.x_BTC, residual.delta_BTC, weight, bias, eps));
}

RmsNorm::RmsNorm(std::int64_t width, double eps_) : eps(eps_) {
  weight = register_parameter("weight", filled(width, 1));
}

torch::Tensor RmsNorm::forward(Residual& residual) {
  return take(residual, ops::add_rms_norm(residual.x_BTC, residual.delta_BTC, weight, eps));
}

}  // namespace trireme::model
