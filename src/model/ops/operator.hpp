// What the operators' files share: looking an operator up, choosing the storage type, dividing
// rows.
//
// Each file holds one family in the same order: loops over raw rows, the host kernels that allocate
// and call them, the torch::autograd::Function, the registration, and the function of ops.hpp.
#pragma once

#include "trireme/model/ops.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace trireme::model::ops {

using c10::BFloat16;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;

// Below autograd, and only there: the sharding engine's dispatch key stays in force, so that it
// sees the operators of the backward pass too.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Calls body with a value of the storage type.
template <class Body>
void by_type(at::ScalarType type, Body body) {
  if (type == at::kFloat) return body(float{});
  if (type == at::kHalf) return body(c10::Half{});
  TORCH_CHECK(type == at::kBFloat16, "trireme's operators know fp32, bf16 and fp16, not ", type);
  body(BFloat16{});
}

// Where some weights are kept in fp32, operators run in the widest type of their arguments.
inline at::ScalarType widest(std::initializer_list<const Tensor*> tensors) {
  auto type = at::ScalarType::Undefined;
  for (const Tensor* tensor : tensors) {
    if (!tensor->defined()) continue;
    const bool first = type == at::ScalarType::Undefined;
    type = first ? tensor->scalar_type() : at::promote_types(type, tensor->scalar_type());
  }
  return type;
}
inline Tensor as_type(const Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type) : tensor;
}

inline MaybeTensor maybe(const Tensor& t) { return t.defined() ? MaybeTensor(t) : std::nullopt; }
inline Tensor contiguous(const MaybeTensor& t) {
  return t && t->defined() ? t->contiguous() : Tensor();
}

template <class T>
const T* data_or_null(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<T>() : nullptr;
}

// Rows are worked on in groups of this many whatever the number of threads, so that sums over rows
// have one order.
inline constexpr std::int64_t kRowGroup = 128;
inline std::int64_t num_groups(std::int64_t rows) { return (rows + kRowGroup - 1) / kRowGroup; }

// Calls body(group, first row, end row) for every group.
template <class Body>
void for_row_groups(std::int64_t rows, Body body) {
  at::parallel_for(0, num_groups(rows), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto group = begin; group < end; ++group)
      body(group, group * kRowGroup, std::min(rows, (group + 1) * kRowGroup));
  });
}

}  // namespace trireme::model::ops
