#include "trireme/kernels/norm.hpp"

#include "blocks.hpp"

namespace trireme::kernels {

namespace {

constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kCacheLine = 64 / sizeof(float);

// Asks for the lines two pages ahead: with the conversion to double between, the processor's own
// prefetcher leaves some bandwidth unused. By integers, since the address may
// lie behind the end of the range.
void prefetch_lanes(const float* in) {
  constexpr std::uintptr_t kAhead = 8192;
  for (std::int64_t j = 0; j < kLanes; j += kCacheLine) {
    __builtin_prefetch(
        reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(in + j) + kAhead));
  }
}

// The square of a float is exact in double, so nothing overflows or underflows and only additions
// round. The lanes fix the order of additions for every vector width.
double square_sum(const float* in, std::int64_t size) {
  double lane[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    prefetch_lanes(in + i);
    for (std::int64_t j = 0; j < kLanes; ++j) {
      const double value = in[i + j];
      lane[j] += value * value;
    }
  }
  for (std::int64_t j = 0; i + j < size; ++j) {
    const double value = in[i + j];
    lane[j] += value * value;
  }
  double total = 0;
  for (const double part : lane) total += part;
  return total;
}

struct SquareSums {
  std::span<const float> in;
  double* out;

  void operator()(std::int64_t block) const {
    const detail::Run part = detail::run_of(block, kNormBlock, std::ssize(in));
    out[block] = square_sum(in.data() + part.begin, part.size);
  }
};

}  // namespace

void block_square_sums(std::span<const float> in, std::span<double> out) {
  const std::int64_t blocks = detail::num_blocks(std::ssize(in), kNormBlock);
  ensure(std::ssize(out) == blocks, "block_square_sums: one sum per block of 8 Ki elements");
  detail::for_each_block(blocks, SquareSums{in, out.data()});
}

}  // namespace trireme::kernels
