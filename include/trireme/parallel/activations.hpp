// How much memory a pass over any module needs beside its weights, by running one.
#pragma once

#include "trireme/base/units.hpp"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>

namespace trireme::parallel {

// Runs forward and backward of `loss` on weights of type `compute` that are all zero and have no
// memory, and returns the most bytes that tensors held at a time: what is saved for backward, and
// gradients until they are complete. The module's parameters are useless afterwards. Not a
// collective.
Bytes measure_activations(torch::nn::Module& module, at::ScalarType compute,
                          const std::function<at::Tensor()>& loss);

}  // namespace trireme::parallel
