// Activations in one pass over memory, forward and backward. Arithmetic is fp32 inside whatever the
// storage; the values are within a few units in the last place of the formula evaluated in double.
// Outputs may be the very ranges of inputs (y = x, dx = dy), but must not overlap them otherwise.
//
// NaN gives NaN; GELU and SiLU of +infinity are +infinity, of -infinity NaN as in PyTorch (-inf *
// 0). Derivatives are finite for every x, infinities included (1, or 0 to 1e-34).
#pragma once

#include "trireme/kernels/convert.hpp"

#include <span>

namespace trireme::kernels {

// y = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): GELU with approximate="tanh", GPT-2's
// gelu_new.
void gelu_tanh(std::span<const float> x, std::span<float> y);
void gelu_tanh_bf16(std::span<const Half> x, std::span<Half> y);

// dx = dy gelu'(x).
void gelu_tanh_backward(std::span<const float> x, std::span<const float> dy, std::span<float> dx);
void gelu_tanh_backward_bf16(std::span<const Half> x, std::span<const Half> dy, std::span<Half> dx);

// y = gate sigmoid(gate) up: the gated unit of Llama's feed-forward layer.
void swiglu(std::span<const float> gate, std::span<const float> up, std::span<float> y);
void swiglu_bf16(std::span<const Half> gate, std::span<const Half> up, std::span<Half> y);

template <class T>
struct SwiGluInputs {
  std::span<const T> gate;
  std::span<const T> up;
};

template <class T>
struct SwiGluGradients {
  std::span<T> gate;
  std::span<T> up;
};

void swiglu_backward(const SwiGluInputs<float>& inputs, std::span<const float> dy,
                     const SwiGluGradients<float>& gradients);
void swiglu_backward_bf16(const SwiGluInputs<Half>& inputs, std::span<const Half> dy,
                          const SwiGluGradients<Half>& gradients);

}  // namespace trireme::kernels
