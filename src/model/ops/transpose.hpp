// Transpositions through registers, for operands that matrix products read the other way round.
#pragma once

#include "lanes.hpp"

namespace trireme::model {

// out[c][r] = in[r][c]; strides are in elements. Whole 16 x 16 tiles go through registers.
inline void transpose(const std::uint32_t* in, std::int64_t in_stride, std::uint32_t* out, std::int64_t out_stride,
                      std::int64_t rows, std::int64_t columns) {
  using lanes::kLanes;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    for (std::int64_t r = 0; r < rows; r += kLanes) {
      if (r + kLanes <= rows && c + kLanes <= columns) {
        lanes::Words tile[kLanes];
        for (std::int64_t i = 0; i < kLanes; ++i) std::memcpy(&tile[i], in + (r + i) * in_stride + c, sizeof tile[i]);
        lanes::transpose(tile);
        for (std::int64_t i = 0; i < kLanes; ++i) std::memcpy(out + (c + i) * out_stride + r, &tile[i], sizeof tile[i]);
      } else {
        for (auto j = c; j < std::min(columns, c + kLanes); ++j)
          for (auto i = r; i < std::min(rows, r + kLanes); ++i) out[j * out_stride + i] = in[i * in_stride + j];
      }
    }
  }
}

// The same for 16-bit elements, two rows to a word: tiles of 32 rows and 16 columns.
inline void transpose(const c10::BFloat16* in, std::int64_t in_stride, c10::BFloat16* out, std::int64_t out_stride,
                      std::int64_t rows, std::int64_t columns) {
  using lanes::kLanes;
  constexpr std::int64_t kRows = 2 * kLanes;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    for (std::int64_t r = 0; r < rows; r += kRows) {
      if (r + kRows <= rows && c + kLanes <= columns) {
        lanes::Words tile[kLanes];
        for (std::int64_t i = 0; i < kLanes; ++i) {
          lanes::Halves upper, lower;
          std::memcpy(&upper, in + (r + 2 * i) * in_stride + c, sizeof upper);
          std::memcpy(&lower, in + (r + 2 * i + 1) * in_stride + c, sizeof lower);
          tile[i] = __builtin_convertvector(upper, lanes::Words) | __builtin_convertvector(lower, lanes::Words) << 16;
        }
        lanes::transpose(tile);
        for (std::int64_t i = 0; i < kLanes; ++i) std::memcpy(out + (c + i) * out_stride + r, &tile[i], sizeof tile[i]);
      } else {
        for (auto j = c; j < std::min(columns, c + kLanes); ++j)
          for (auto i = r; i < std::min(rows, r + kRows); ++i) out[j * out_stride + i] = in[i * in_stride + j];
      }
    }
  }
}

inline void transpose(const float* in, std::int64_t in_stride, float* out, std::int64_t out_stride, std::int64_t rows,
                      std::int64_t columns) {
  transpose(reinterpret_cast<const std::uint32_t*>(in), in_stride, reinterpret_cast<std::uint32_t*>(out), out_stride,
            rows, columns);
}

}  // namespace trireme::model
