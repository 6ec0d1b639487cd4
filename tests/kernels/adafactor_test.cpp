// Sums over rows and columns that no way of cutting a matrix changes, and that are right.
#include "trireme/kernels/adafactor.hpp"

#include "trireme/base/error.hpp"

#include "kernels/kokkos.hpp"
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trireme::kernels {
namespace {

constexpr std::int64_t kMatrices = 3;
constexpr std::int64_t kRows = 57;
constexpr std::int64_t kCols = 2100;  // over a border of column blocks
constexpr std::int64_t kSize = kMatrices * kRows * kCols;
const GradientTreatment kTreatment{.scale = 0.3F, .clip_value = 20};

// Entries over thirty decades: rows and columns of very different size.
std::vector<float> entries() {
  std::vector<float> values = numbers(kSize, 3);
  const std::vector<float> spread = numbers(kSize, 4, 34.0F);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= std::exp(spread[i]);
  for (std::int64_t c = 0; c < kCols; ++c) values[static_cast<std::size_t>(5 * kCols + c)] = 0;
  return values;
}

struct Sums {
  std::vector<float> row_largest = std::vector<float>(kMatrices * kRows);
  std::vector<float> col_largest = std::vector<float>(kMatrices * kCols);
  std::vector<double> rows = std::vector<double>(kMatrices * kRows);
  std::vector<double> cols = std::vector<double>(kMatrices * kCols);
};

// In parts of `size` elements, the last first.
Sums summed(const std::vector<float>& values, std::int64_t size) {
  std::vector<MatrixPart> parts;
  for (std::int64_t begin = 0; begin < kSize; begin += size) {
    const auto count = static_cast<std::size_t>(std::min(size, kSize - begin));
    parts.insert(parts.begin(), {std::span(values).subspan(static_cast<std::size_t>(begin), count),
                                 begin, kRows, kCols});
  }
  Sums sums;
  for (const MatrixPart& part : parts) {
    row_maxima(part, sums.row_largest);
    column_maxima(part, sums.col_largest);
  }
  for (const MatrixPart& part : parts) {
    add_row_squares(part, kTreatment, sums.row_largest, sums.rows);
    add_column_squares(part, kTreatment, sums.col_largest, sums.cols);
  }
  return sums;
}

TEST(Squares, add_up_to_the_same_bits_however_a_matrix_is_cut) {
  const std::vector<float> values = entries();
  const Sums whole = summed(values, kSize);
  for (const std::int64_t size : {8192, 1000, 77'777, 2100, 333}) {
    const Sums cut = summed(values, size);
    EXPECT_EQ(cut.rows, whole.rows) << size;
    EXPECT_EQ(cut.cols, whole.cols) << size;
    EXPECT_EQ(cut.row_largest, whole.row_largest);
  }
}

TEST(Squares, are_those_of_the_treated_gradient) {
  const std::vector<float> values = entries();
  const Sums sums = summed(values, 10'000);
  std::vector<double> rows(kMatrices * kRows), cols(kMatrices * kCols);
  for (std::int64_t i = 0; i < kSize; ++i) {
    const double g = std::clamp(values[static_cast<std::size_t>(i)] * 0.3F, -20.0F, 20.0F);
    rows[static_cast<std::size_t>(i / kCols)] += g * g;
    cols[static_cast<std::size_t>(i / (kRows * kCols) * kCols + i % kCols)] += g * g;
  }
  for (std::size_t r = 0; r < rows.size(); ++r) ASSERT_NEAR(sums.rows[r], rows[r], 1e-9 * rows[r]);
  for (std::size_t c = 0; c < cols.size(); ++c) ASSERT_NEAR(sums.cols[c], cols[c], 1e-9 * cols[c]);
  EXPECT_EQ(sums.rows[5], 0);
}

TEST(Direction, is_the_gradient_times_the_factors_of_its_row_and_column) {
  const std::vector<float> values = entries();
  const std::vector<float> row = numbers(kMatrices * kRows, 8);
  const std::vector<float> col = numbers(kMatrices * kCols, 9);
  constexpr std::int64_t kBegin = 60'001;
  std::vector<float> out(50'000);
  const MatrixPart part{std::span(values).subspan(kBegin, out.size()), kBegin, kRows, kCols};
  adafactor_direction(part, kTreatment, row, col, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t e = kBegin + static_cast<std::int64_t>(i);
    const float g = std::clamp(values[static_cast<std::size_t>(e)] * 0.3F, -20.0F, 20.0F);
    const float c = col[static_cast<std::size_t>(e / (kRows * kCols) * kCols + e % kCols)];
    ASSERT_EQ(out[i], (row[static_cast<std::size_t>(e / kCols)] * c) * g) << i;
  }
}

TEST(Squares, refuse_arrays_that_are_too_short) {
  const std::vector<float> values(100, 1.0F);
  std::vector<float> largest(9);
  EXPECT_THROW(row_maxima({values, 0, 10, 10}, largest), Error);
  EXPECT_THROW(column_maxima({values, 0, 10, 10}, largest), Error);
}

}  // namespace
}  // namespace trireme::kernels
