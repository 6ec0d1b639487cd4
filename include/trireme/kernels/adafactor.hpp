// What Adafactor (Shazeer & Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
// 2018) needs of gradients: sums of squares over rows and columns of matrices of which a rank holds
// a part, and the direction that they give.
//
// Sums are the same to the bit for every way to cut a matrix. Squares are rounded to a multiple of
// a quantum that follows from the largest entry of the whole row or column (agreed first), so
// coarse that no later addition in double rounds (Demmel & Nguyen, "Fast reproducible
// floating-point summation", 2013). A square loses at most 2^-53 of the number of terms times the
// largest square.
#pragma once

#include "trireme/kernels/optimizers.hpp"

#include <cstdint>
#include <span>

namespace trireme::kernels {

// Consecutive elements, in row-major order, of a batch of matrices. A row is counted through the
// batch; so is a column: column c of matrix b is number b * cols + c.
struct MatrixPart {
  std::span<const float> grad;
  std::int64_t begin = 0;  // number of the first element
  std::int64_t rows = 1;   // of one matrix
  std::int64_t cols = 1;
};

// largest = max(largest, |g|), for whole rows and columns of the batch; g before any treatment.
void row_maxima(const MatrixPart& part, std::span<float> largest);
void column_maxima(const MatrixPart& part, std::span<float> largest);

// sums += g^2, g treated. `largest` holds maxima over all parts.
void add_row_squares(const MatrixPart& part, const GradientTreatment& treatment,
                     std::span<const float> largest, std::span<double> sums);
void add_column_squares(const MatrixPart& part, const GradientTreatment& treatment,
                        std::span<const float> largest, std::span<double> sums);

// out[i] = (row_factors[row] * column_factors[column]) * g. Without row factors: column_factors[column] * g.
void adafactor_direction(const MatrixPart& part, const GradientTreatment& treatment,
                         std::span<const float> row_factors, std::span<const float> column_factors,
                         std::span<float> out);

// The rest of transformers' Adafactor; the range's gradient is the direction. Moments: its mean,
// where beta1 is not 0.
struct AdafactorRule {
  double lr = 0;
  double divisor = 1;  // of the direction, so that its root mean square stays bounded
  double beta1 = 0;
  double weight_decay = 0;
};

int num_moments(const AdafactorRule& rule);
void update(const AdafactorRule& rule, const GradientTreatment& treatment,
            const UpdateRange& range);

}  // namespace trireme::kernels
