// Transpositions through registers, for operands that matrix products read the other way round.
#pragma once

#include "lanes.hpp"

#include <algorithm>

namespace trireme::model {

// out[c][r] = in[r][c]; strides are in elements. Whole 16 x 16 tiles go through registers.
inline void transpose(const std::uint32_t* in, std::int64_t in_stride, std::uint32_t* out,
                      std::int64_t out_stride, std::int64_t rows, std::int64_t columns) {
  using lanes::kLanes;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    for (std::int64_t r = 0; r < rows; r += kLanes) {
      if (r + kLanes <= rows && c + kLanes <= columns) {
        lanes::Words tile[kLanes];
        for (std::int64_t i = 0; i < kLanes; ++i)
          std::memcpy(&tile[i], in + (r + i) * in_stride + c, sizeof tile[i]);
        lanes::transpose(tile);
        for (std::int64_t i = 0; i < kLanes; ++i)
          std::memcpy(out + (c + i) * out_stride + r, &tile[i], sizeof tile[i]);
      } else {
        for (auto j = c; j < std::min(columns, c + kLanes); ++j)
          for (auto i = r; i < std::min(rows, r + kLanes); ++i)
            out[j * out_stride + i] = in[i * in_stride + j];
      }
    }
  }
}

// The same for 16-bit elements, two rows to a word: tiles of 32 rows and 16 columns.
inline void transpose(const c10::BFloat16* in, std::int64_t in_stride, c10::BFloat16* out,
                      std::int64_t out_stride, std::int64_t rows, std::int64_t columns) {
  using lanes::kLanes;
  constexpr std::int64_t kRows = 2 * kLanes;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    for (std::int64_t r = 0; r < rows; r += kRows) {
      if (r + kRows <= rows && c + kLanes <= columns) {
        lanes::Words tile[kLanes];
        const auto* from = in + r * in_stride + c;
        for (std::int64_t i = 0; i < kLanes; ++i)
          tile[i] = lanes::paired(lanes::load_halves(from + 2 * i * in_stride),
                                  lanes::load_halves(from + (2 * i + 1) * in_stride));
        lanes::transpose(tile);
        for (std::int64_t i = 0; i < kLanes; ++i)
          std::memcpy(out + (c + i) * out_stride + r, &tile[i], sizeof tile[i]);
      } else {
        for (auto j = c; j < std::min(columns, c + kLanes); ++j)
          for (auto i = r; i < std::min(rows, r + kRows); ++i)
            out[j * out_stride + i] = in[i * in_stride + j];
      }
    }
  }
}

// out[2 c] = upper[c], out[2 c + 1] = lower[c].
inline void interleave(const c10::BFloat16* upper, const c10::BFloat16* lower, std::int64_t columns,
                       c10::BFloat16* out) {
  std::int64_t c = 0;
  for (; c + lanes::kLanes <= columns; c += lanes::kLanes) {
    const auto pairs = lanes::paired(lanes::load_halves(upper + c), lanes::load_halves(lower + c));
    std::memcpy(out + 2 * c, &pairs, sizeof pairs);
  }
  for (; c < columns; ++c) {
    out[2 * c] = upper[c];
    out[2 * c + 1] = lower[c];
  }
}

inline void transpose(const float* in, std::int64_t in_stride, float* out, std::int64_t out_stride,
                      std::int64_t rows, std::int64_t columns) {
  transpose(reinterpret_cast<const std::uint32_t*>(in), in_stride,
            reinterpret_cast<std::uint32_t*>(out), out_stride, rows, columns);
}

}  // namespace trireme::model
