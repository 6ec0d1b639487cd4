// A gradient tensor of any compute type into fp32. Private to the room.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace trireme::parallel {

// Writes the gradient's elements, or adds them to what is there.
void put(const at::Tensor& gradient, bool add, std::span<float> into);

}  // namespace trireme::parallel
