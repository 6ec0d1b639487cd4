// The kernels against what memory gives: beside each kernel stands a loop with the same streams and
// next to no arithmetic, and the ratio of their bytes per second is how much of the bound is
// reached. Every kernel's result is verified before it is timed.
//   kernels_bench --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true
// Sizes: 256 Ki elements lie in a second-level cache, 32 Mi in memory. Time is the thread's own.
#include "trireme/kernels/accumulate.hpp"
#include "trireme/kernels/activation.hpp"
#include "trireme/kernels/adafactor.hpp"
#include "trireme/kernels/convert.hpp"
#include "trireme/kernels/initialise.hpp"
#include "trireme/kernels/norm.hpp"
#include "trireme/kernels/optimizers.hpp"
#include "trireme/kernels/runtime.hpp"

#include <benchmark/benchmark.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using namespace trireme::kernels;
using benchmark::State;

std::vector<float> normal(std::int64_t size, std::uint64_t key) {
  std::vector<float> values(static_cast<std::size_t>(size));
  fill_normal(values, key, 0, 0.0F, 1.0F);
  return values;
}

std::vector<Half> halves(std::int64_t size, std::uint64_t key) {
  std::vector<Half> narrow(static_cast<std::size_t>(size));
  narrow_bf16(normal(size, key), narrow);
  return narrow;
}

// Runs `kernel`, then times it if `good` says that its result is right.
template <class Kernel, class Good>
void measure(State& state, std::int64_t bytes_per_element, Kernel kernel, Good good) {
  kernel();
  if (!good()) {
    state.SkipWithError("the result is wrong");
    return;
  }
  for (auto _ : state) {
    kernel();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * bytes_per_element);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

const auto always = [] { return true; };

bool near(double value, double expected) {
  return std::fabs(value - expected) <= 1e-5 * (1 + std::fabs(expected));
}

float wide(Half half) { return std::bit_cast<float>(std::uint32_t{half} << 16); }

// The bounds: same streams, one addition.

void stream_4_2(const float* __restrict in, Half* __restrict out, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    out[i] = static_cast<Half>(std::bit_cast<std::uint32_t>(in[i]) >> 16);
  }
}

void stream_add(float* __restrict into, const float* __restrict in, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) into[i] += in[i];
}

void stream_5(const float* __restrict g, float* __restrict p, float* __restrict m,
              float* __restrict v, Half* __restrict w, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    const float sum = p[i] + g[i];
    p[i] = sum;
    m[i] += g[i];
    v[i] += g[i];
    w[i] = static_cast<Half>(std::bit_cast<std::uint32_t>(sum) >> 16);
  }
}

// Integers, because an addition of floats in order would be bound by its latency.
std::uint32_t stream_4(const float* __restrict in, std::int64_t size) {
  std::uint32_t all = 0;
  for (std::int64_t i = 0; i < size; ++i) all |= std::bit_cast<std::uint32_t>(in[i]);
  return all;
}

void bound_convert(State& state) {
  const auto in = normal(state.range(0), 1);
  std::vector<Half> out(in.size());
  measure(
      state, 6, [&] { stream_4_2(in.data(), out.data(), state.range(0)); }, always);
}

void bound_add(State& state) {
  auto into = normal(state.range(0), 1);
  const auto in = normal(state.range(0), 2);
  measure(
      state, 12, [&] { stream_add(into.data(), in.data(), state.range(0)); }, always);
}

void bound_norm(State& state) {
  const auto in = normal(state.range(0), 1);
  measure(
      state, 4, [&] { benchmark::DoNotOptimize(stream_4(in.data(), state.range(0))); }, always);
}

struct AdamWState {
  explicit AdamWState(std::int64_t size)
      : grad(normal(size, 1)),
        master(normal(size, 2)),
        exp_avg(grad.size()),
        exp_avg_sq(grad.size()),
        work(grad.size()) {}
  UpdateRange range() {
    return {grad,
            master,
            {exp_avg.data(), exp_avg_sq.data()},
            NumberType::kFp32,
            {work.data(), NumberType::kBf16}};
  }

  std::vector<float> grad, master, exp_avg, exp_avg_sq;
  std::vector<Half> work;
};

void bound_adamw(State& state) {
  AdamWState s(state.range(0));
  measure(
      state, 30,
      [&] {
        stream_5(s.grad.data(), s.master.data(), s.exp_avg.data(), s.exp_avg_sq.data(),
                 s.work.data(), state.range(0));
      },
      always);
}

// The kernels.

void convert_narrow_bf16(State& state) {
  const auto in = normal(state.range(0), 1);
  std::vector<Half> out(in.size());
  measure(
      state, 6, [&] { narrow_bf16(in, out); },
      [&] { return std::fabs(wide(out.back()) - in.back()) <= std::fabs(in.back()) / 256; });
}

void convert_narrow_fp16(State& state) {
  const auto in = normal(state.range(0), 1);
  std::vector<Half> out(in.size());
  std::vector<float> back(in.size());
  measure(
      state, 6, [&] { narrow_fp16(in, out); },
      [&] {
        widen_fp16(out, back);
        return std::fabs(back.back() - in.back()) <= std::fabs(in.back()) / 2048 + 1e-7F;
      });
}

void convert_widen_bf16(State& state) {
  const auto in = halves(state.range(0), 1);
  std::vector<float> out(in.size());
  measure(
      state, 6, [&] { widen_bf16(in, out); }, [&] { return out.back() == wide(in.back()); });
}

void convert_widen_fp16(State& state) {
  const std::vector<Half> in(static_cast<std::size_t>(state.range(0)), Half{0x3e00});
  std::vector<float> out(in.size());
  measure(
      state, 6, [&] { widen_fp16(in, out); }, [&] { return out.back() == 1.5F; });
}

void accumulate_add(State& state) {
  auto into = normal(state.range(0), 1);
  const auto in = normal(state.range(0), 2);
  const float expected = into.back() + in.back();
  measure(
      state, 12, [&] { add(into, in); }, [&] { return into.back() == expected; });
}

void accumulate_add_bf16(State& state) {
  auto into = normal(state.range(0), 1);
  const auto in = halves(state.range(0), 2);
  const float expected = into.back() + wide(in.back());
  measure(
      state, 10, [&] { add_bf16(into, in); }, [&] { return into.back() == expected; });
}

void norm_block_square_sums(State& state) {
  const auto in = normal(state.range(0), 1);
  std::vector<double> sums((in.size() + kNormBlock - 1) / kNormBlock);
  measure(
      state, 4, [&] { block_square_sums(in, sums); },
      [&] {
        double expected = 0;
        for (std::size_t i = 0; i < kNormBlock; ++i) expected += double{in[i]} * in[i];
        return near(sums[0], expected);
      });
}

// The first step of AdamW moves a weight by the rate against the gradient's sign, whatever the
// gradient's size.
void adamw_bf16_step(State& state) {
  AdamWState s(state.range(0));
  const float old = s.master.back();
  const AdamRule rule{.lr = 1e-3};
  measure(
      state, 30, [&] { update(rule, {}, s.range()); },
      [&] { return near(s.master.back(), old - std::copysign(1e-3F, s.grad.back())); });
}

// Moments in bf16: eight bytes an element less, for the random bits of two roundings.
void adamw_bf16_moments_step(State& state) {
  AdamWState s(state.range(0));
  std::vector<Half> moments[2] = {std::vector<Half>(s.grad.size()),
                                  std::vector<Half>(s.grad.size())};
  const float old = s.master.back();
  UpdateRange range = s.range();
  range.moments = {moments[0].data(), moments[1].data()};
  range.moment_type = NumberType::kBf16;
  const AdamRule rule{.lr = 1e-3};
  measure(
      state, 22, [&] { update(rule, {}, range); },
      [&] { return near(s.master.back(), old - std::copysign(1e-3F, s.grad.back())); });
}

void sgd_momentum_step(State& state) {
  AdamWState s(state.range(0));
  const float expected = s.master.back() - 1e-3F * s.grad.back();
  measure(
      state, 22, [&] { update(SgdRule{.lr = 1e-3, .momentum = 0.9, .step = 2}, {}, s.range()); },
      [&] { return near(s.master.back(), expected); });
}

void lion_step(State& state) {
  AdamWState s(state.range(0));
  const float old = s.master.back();
  measure(
      state, 22, [&] { update(LionRule{.lr = 1e-3}, {}, s.range()); },
      [&] { return near(s.master.back(), old - std::copysign(1e-3F, s.grad.back())); });
}

// Rows of 1,024: the passes of Adafactor over a gradient.
struct Matrix {
  explicit Matrix(std::int64_t size)
      : grad(normal(size, 1)),
        rows(grad.size() / kCols),
        row_largest(rows),
        col_largest(kCols),
        row_sums(rows),
        col_sums(kCols) {
    row_maxima(part(), row_largest);
    column_maxima(part(), col_largest);
  }
  MatrixPart part() const { return {grad, 0, static_cast<std::int64_t>(rows), kCols}; }

  static constexpr std::int64_t kCols = 1024;
  std::vector<float> grad;
  std::size_t rows;
  std::vector<float> row_largest, col_largest;
  std::vector<double> row_sums, col_sums;
};

void adafactor_maxima(State& state) {
  Matrix m(state.range(0));
  measure(
      state, 8,
      [&] {
        row_maxima(m.part(), m.row_largest);
        column_maxima(m.part(), m.col_largest);
      },
      [&] { return m.row_largest[0] >= std::fabs(m.grad[0]); });
}

void adafactor_squares(State& state) {
  Matrix m(state.range(0));
  measure(
      state, 8,
      [&] {
        add_row_squares(m.part(), {}, m.row_largest, m.row_sums);
        add_column_squares(m.part(), {}, m.col_largest, m.col_sums);
      },
      [&] {
        double sum = 0;
        for (std::size_t i = 0; i < Matrix::kCols; ++i) sum += double{m.grad[i]} * m.grad[i];
        return near(m.row_sums[0], sum);
      });
}

void adafactor_directions(State& state) {
  Matrix m(state.range(0));
  std::vector<float> out(m.grad.size());
  measure(
      state, 8, [&] { adafactor_direction(m.part(), {}, m.row_largest, m.col_largest, out); },
      [&] { return near(out[0], double{m.row_largest[0]} * m.col_largest[0] * m.grad[0]); });
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

void activation_gelu_bf16(State& state) {
  const auto x = halves(state.range(0), 1);
  std::vector<Half> y(x.size());
  measure(
      state, 4, [&] { gelu_tanh_bf16(x, y); },
      [&] { return std::fabs(wide(y.back()) - gelu(wide(x.back()))) < 1e-2; });
}

void activation_gelu_backward_bf16(State& state) {
  const auto x = halves(state.range(0), 1);
  const auto dy = halves(state.range(0), 2);
  std::vector<Half> dx(x.size());
  measure(
      state, 6, [&] { gelu_tanh_backward_bf16(x, dy, dx); },
      [&] {
        const double at = wide(x.back());
        const double slope = (gelu(at + 1e-5) - gelu(at - 1e-5)) / 2e-5;
        return std::fabs(wide(dx.back()) - slope * wide(dy.back())) < 3e-2;
      });
}

void activation_swiglu_bf16(State& state) {
  const auto gate = halves(state.range(0), 1);
  const auto up = halves(state.range(0), 2);
  std::vector<Half> y(gate.size());
  measure(
      state, 6, [&] { swiglu_bf16(gate, up, y); },
      [&] {
        const double g = wide(gate.back());
        return std::fabs(wide(y.back()) - g / (1 + std::exp(-g)) * wide(up.back())) < 3e-2;
      });
}

void initialise_normal(State& state) {
  std::vector<float> out(static_cast<std::size_t>(state.range(0)));
  measure(
      state, 4, [&] { fill_normal(out, 1, 0, 0.0F, 1.0F); },
      [&] {
        double squares = 0;
        for (const float v : out) squares += double{v} * v;
        return std::fabs(squares / static_cast<double>(out.size()) - 1) < 0.02;
      });
}

constexpr std::int64_t kInCache = 1 << 18;
constexpr std::int64_t kInMemory = 1 << 25;

BENCHMARK(bound_convert)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(convert_narrow_bf16)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(convert_narrow_fp16)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(convert_widen_bf16)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(convert_widen_fp16)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(bound_add)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(accumulate_add)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(accumulate_add_bf16)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(bound_norm)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(norm_block_square_sums)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(bound_adamw)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(adamw_bf16_step)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(adamw_bf16_moments_step)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(sgd_momentum_step)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(lion_step)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(adafactor_maxima)->Arg(kInMemory);
BENCHMARK(adafactor_squares)->Arg(kInMemory);
BENCHMARK(adafactor_directions)->Arg(kInMemory);
BENCHMARK(activation_gelu_bf16)->Arg(kInCache);
BENCHMARK(activation_gelu_backward_bf16)->Arg(kInCache);
BENCHMARK(activation_swiglu_bf16)->Arg(kInCache);
BENCHMARK(initialise_normal)->Arg(kInCache);

}  // namespace

int main(int count, char** arguments) {
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  const Runtime runtime;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
