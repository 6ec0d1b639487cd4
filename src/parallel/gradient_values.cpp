#include "parallel/gradient_values.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/accumulate.hpp"
#include "trireme/kernels/convert.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

namespace trireme::parallel {

namespace {

std::span<const float> floats(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

template <class Type>
std::span<const kernels::Half> halves(const at::Tensor& tensor) {
  return {reinterpret_cast<const kernels::Half*>(tensor.const_data_ptr<Type>()),
          static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

void put(const at::Tensor& gradient, bool add, std::span<float> into) {
  const at::Tensor dense = gradient.contiguous();
  ensure(static_cast<std::size_t>(dense.numel()) == into.size(),
         "a gradient has its parameter's size");
  switch (dense.scalar_type()) {
    case at::kBFloat16:
      add ? kernels::add_bf16(into, halves<at::BFloat16>(dense))
          : kernels::widen_bf16(halves<at::BFloat16>(dense), into);
      return;
    case at::kHalf:
      add ? kernels::add_fp16(into, halves<at::Half>(dense))
          : kernels::widen_fp16(halves<at::Half>(dense), into);
      return;
    case at::kFloat:
      if (add) {
        kernels::add(into, floats(dense));
      } else {
        std::copy_n(dense.const_data_ptr<float>(), into.size(), into.begin());
      }
      return;
    default:
      throw Error(
          ErrorKind::kConfig,
          fmt::format("a gradient of type {} cannot be added", toString(dense.scalar_type())),
          "keep the model's parameters in the type that trireme gave them");
  }
}

}  // namespace trireme::parallel
