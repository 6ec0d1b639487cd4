// The machine's own bound: what utilisation is measured against.
#pragma once

#include <c10/core/ScalarType.h>

namespace trireme::train {

// Returns the rate of square matrix products in this type, in floating-point operations a second of
// this rank, with the threads it has. Takes about 50 ms; called on all ranks at once it measures
// what they get together.
double measure_gemm_peak(c10::ScalarType type);

}  // namespace trireme::train
