// What torch calls a type, as kernels call it.
#pragma once

#include "trireme/kernels/optimizers.hpp"

#include <c10/core/ScalarType.h>

namespace trireme::optim {

inline kernels::NumberType number_type(at::ScalarType type) {
  if (type == at::kFloat) return kernels::NumberType::kFp32;
  return type == at::kBFloat16 ? kernels::NumberType::kBf16 : kernels::NumberType::kFp16;
}

}  // namespace trireme::optim
