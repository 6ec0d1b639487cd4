#include "trireme/kernels/adafactor.hpp"

#include "update.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace trireme::kernels {

namespace {

constexpr std::int64_t kColumnBlock = 2048;
constexpr std::int64_t kLanes = 16;

struct Treat {
  explicit Treat(const GradientTreatment& treatment)
      : scale(treatment.maximize ? -treatment.scale : treatment.scale),
        bound(treatment.clip_value > 0 ? treatment.clip_value
                                       : std::numeric_limits<float>::infinity()) {}

  float operator()(float grad) const {
    const float value = grad * scale;
    const float below = value > bound ? bound : value;
    return below < -bound ? -bound : below;
  }

  float scale;
  float bound;
};

// The part of a row of the batch that lies in a MatrixPart.
struct Segment {
  std::int64_t row;
  std::int64_t column;  // within the row
  std::int64_t size;
  const float* grad;
};

std::int64_t first_row(const MatrixPart& part) { return part.begin / part.cols; }
std::int64_t num_rows(const MatrixPart& part) {
  if (part.grad.empty()) return 0;
  return (part.begin + std::ssize(part.grad) - 1) / part.cols - first_row(part) + 1;
}

Segment segment_of(const MatrixPart& part, std::int64_t index) {
  const std::int64_t row = first_row(part) + index;
  const std::int64_t begin = std::max(part.begin, row * part.cols);
  const std::int64_t end = std::min(part.begin + std::ssize(part.grad), (row + 1) * part.cols);
  return {row, begin - row * part.cols, end - begin, part.grad.data() + (begin - part.begin)};
}

// Calls use(column number in the batch, gradients, size) for what a block of columns has in `part`.
template <class Use>
void for_columns(const MatrixPart& part, std::int64_t block, const Use& use) {
  const std::int64_t first = block * kColumnBlock;
  const std::int64_t last = std::min(first + kColumnBlock, part.cols);
  const std::int64_t rows = num_rows(part);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Segment s = segment_of(part, r);
    const std::int64_t begin = std::max(first, s.column);
    const std::int64_t end = std::min(last, s.column + s.size);
    if (begin >= end) continue;
    use(s.row / part.rows * part.cols + begin, s.grad + (begin - s.column), end - begin);
  }
}

std::int64_t column_blocks(const MatrixPart& part) {
  return detail::num_blocks(part.cols, kColumnBlock);
}

// As bits, whose order is that of magnitudes; NaN is largest.
std::uint32_t magnitude(float value) { return detail::bits_of(value) & 0x7fffffffU; }

float larger(float a, float b) { return detail::float_of(std::max(magnitude(a), magnitude(b))); }

struct RowMaxima {
  MatrixPart part;
  float* largest;

  void operator()(std::int64_t index) const {
    const Segment s = segment_of(part, index);
    std::uint32_t most = magnitude(largest[s.row]);
    for (std::int64_t i = 0; i < s.size; ++i) most = std::max(most, magnitude(s.grad[i]));
    largest[s.row] = detail::float_of(most);
  }
};

struct ColumnMaxima {
  MatrixPart part;
  float* largest;

  void operator()(std::int64_t block) const {
    for_columns(part, block, [this](std::int64_t at, const float* grad, std::int64_t size) {
      float* const into = largest + at;
      for (std::int64_t i = 0; i < size; ++i) into[i] = larger(into[i], grad[i]);
    });
  }
};

// Adding and taking away this number rounds a square of at most largest^2 to the quantum at which
// `terms` of them add up without rounding: 2^52 quanta hold the sum.
double rounder(float largest, std::int64_t terms) {
  if (largest == 0 || !std::isfinite(largest)) return 0;
  const int exponent = std::ilogb(largest) + 1;  // largest < 2^exponent
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(terms - 1)));
  return std::ldexp(1.5, 2 * exponent + bits);
}

struct RowSquares {
  MatrixPart part;
  Treat treat;
  const float* largest;
  double* sums;

  void operator()(std::int64_t index) const {
    const Segment s = segment_of(part, index);
    const double round = rounder(treat(largest[s.row]), part.cols);
    double lane[kLanes] = {};
    for (std::int64_t i = 0; i < s.size; i += kLanes) {
      const std::int64_t size = std::min(kLanes, s.size - i);
      for (std::int64_t j = 0; j < size; ++j) {
        const double g = treat(s.grad[i + j]);
        lane[j] += (g * g + round) - round;
      }
    }
    for (const double part_sum : lane) sums[s.row] += part_sum;
  }
};

struct ColumnSquares {
  MatrixPart part;
  Treat treat;
  const double* rounders;  // by column of the batch
  double* sums;

  void operator()(std::int64_t block) const {
    for_columns(part, block, [this](std::int64_t at, const float* grad, std::int64_t size) {
      const Treat local = treat;
      add_run(local, grad, rounders + at, sums + at, size);
    });
  }

  static void add_run(const Treat& treat, const float* __restrict grad,
                      const double* __restrict round, double* __restrict into, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) {
      const double g = treat(grad[i]);
      into[i] += (g * g + round[i]) - round[i];
    }
  }
};

struct Direction {
  MatrixPart part;
  Treat treat;
  std::span<const float> row_factors;
  const float* column_factors;
  float* out;

  void operator()(std::int64_t index) const {
    const Segment s = segment_of(part, index);
    const float row = row_factors.empty() ? 1.0F : row_factors[static_cast<std::size_t>(s.row)];
    fill(treat, row, column_factors + s.row / part.rows * part.cols + s.column, s.grad,
         out + (s.grad - part.grad.data()), s.size);
  }

  static void fill(const Treat& all, float row, const float* __restrict columns,
                   const float* __restrict grad, float* __restrict out, std::int64_t size) {
    const Treat treat = all;
    for (std::int64_t i = 0; i < size; ++i) out[i] = (row * columns[i]) * treat(grad[i]);
  }
};

template <bool kMean>
struct Adafactor {
  static constexpr std::size_t kMoments = kMean ? 1 : 0;
  float lr;
  float divisor;
  float beta1;
  float weight;  // 1 - beta1
  float decay;   // -weight_decay * lr

  void run(float scale, const float* grad, float* master, float* const* moments,
           std::int64_t size) const {
    sweep(*this, scale, grad, master, moments[0], size);
  }

  static void sweep(const Adafactor& rule, float scale, const float* __restrict grad,
                    float* __restrict master, [[maybe_unused]] float* __restrict exp_avg,
                    std::int64_t size) {
    const Adafactor s = rule;
    for (std::int64_t i = 0; i < size; ++i) {
      float move = (grad[i] * scale) / s.divisor * s.lr;
      if constexpr (kMean) {
        move = std::fma(move, s.weight, exp_avg[i] * s.beta1);
        exp_avg[i] = move;
      }
      master[i] = std::fma(master[i], s.decay, master[i]) - move;
    }
  }
};

std::int64_t batch_rows(const MatrixPart& part) { return first_row(part) + num_rows(part); }

void require_room(const MatrixPart& part, std::size_t rows, std::size_t columns) {
  ensure(part.begin >= 0 && part.rows > 0 && part.cols > 0, "a matrix has rows and columns");
  if (part.grad.empty()) return;
  ensure(static_cast<std::int64_t>(rows) >= batch_rows(part), "fewer rows than the part reaches");
  const std::int64_t matrices = (batch_rows(part) - 1) / part.rows + 1;
  ensure(static_cast<std::int64_t>(columns) >= matrices * part.cols,
         "fewer columns than the part reaches");
}

constexpr std::size_t kAny = std::numeric_limits<std::int64_t>::max();

}  // namespace

void row_maxima(const MatrixPart& part, std::span<float> largest) {
  require_room(part, largest.size(), kAny);
  detail::for_each_block(num_rows(part), RowMaxima{part, largest.data()});
}

void column_maxima(const MatrixPart& part, std::span<float> largest) {
  require_room(part, kAny, largest.size());
  detail::for_each_block(column_blocks(part), ColumnMaxima{part, largest.data()});
}

void add_row_squares(const MatrixPart& part, const GradientTreatment& treatment,
                     std::span<const float> largest, std::span<double> sums) {
  require_room(part, std::min(largest.size(), sums.size()), kAny);
  detail::for_each_block(num_rows(part),
                         RowSquares{part, Treat(treatment), largest.data(), sums.data()});
}

void add_column_squares(const MatrixPart& part, const GradientTreatment& treatment,
                        std::span<const float> largest, std::span<double> sums) {
  require_room(part, kAny, std::min(largest.size(), sums.size()));
  const Treat treat(treatment);
  std::vector<double> rounders(largest.size());
  std::transform(largest.begin(), largest.end(), rounders.begin(),
                 [&](float most) { return rounder(treat(most), part.rows); });
  detail::for_each_block(column_blocks(part),
                         ColumnSquares{part, treat, rounders.data(), sums.data()});
}

void adafactor_direction(const MatrixPart& part, const GradientTreatment& treatment,
                         std::span<const float> row_factors, std::span<const float> column_factors,
                         std::span<float> out) {
  require_room(part, row_factors.empty() ? kAny : row_factors.size(), column_factors.size());
  ensure(out.size() == part.grad.size(), "adafactor_direction: ranges of different length");
  detail::for_each_block(num_rows(part), Direction{part, Treat(treatment), row_factors,
                                                   column_factors.data(), out.data()});
}

int num_moments(const AdafactorRule& rule) { return rule.beta1 == 0 ? 0 : 1; }

void update(const AdafactorRule& rule, const GradientTreatment& treatment,
            const UpdateRange& range) {
  const auto lr = static_cast<float>(rule.lr);
  const auto divisor = static_cast<float>(rule.divisor);
  const auto beta1 = static_cast<float>(rule.beta1);
  const auto weight = static_cast<float>(1 - rule.beta1);
  const auto decay = static_cast<float>(-rule.weight_decay * rule.lr);
  if (rule.beta1 == 0) {
    detail::run_update(Adafactor<false>{lr, divisor, beta1, weight, decay}, treatment, range);
  } else {
    detail::run_update(Adafactor<true>{lr, divisor, beta1, weight, decay}, treatment, range);
  }
}

}  // namespace trireme::kernels
