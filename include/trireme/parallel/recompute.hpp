// Memory for time: a part of forward runs without keeping what its backward needs, and backward
// runs it once more. Gradients are those of the part run in the ordinary way, to the bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace trireme {

using TensorList = std::vector<at::Tensor>;

// Returns function(inputs), keeping for backward only the inputs and the generators' state.
// `function` depends on nothing but its inputs, tensors that require a gradient and are leaves
// (parameters), and LibTorch's CPU generator, and changes none of them; its inputs may be undefined.
// A parameter that it uses gets its gradient as always, once; hooks of Tensor::register_hook see the
// gradient of each part as well. Nothing is kept where no gradient is wanted.
TensorList checkpoint(std::function<TensorList(const TensorList&)> function, TensorList inputs);

// The same for a function of some tensors that returns one.
template <class Function, class... Tensors>
at::Tensor checkpoint_one(Function function, Tensors... inputs) {
  return checkpoint(
      [function = std::move(function)](const TensorList& list) mutable -> TensorList {
        return [&]<std::size_t... i>(std::index_sequence<i...>)->TensorList {
          return {function(list[i]...)};
        }
        (std::index_sequence_for<Tensors...>());
      },
      {inputs...})[0];
}

}  // namespace trireme
