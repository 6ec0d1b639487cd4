#include "trireme/kernels/convert.hpp"

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "blocks.hpp"
#include "half_bits.hpp"
#include "stochastic.hpp"

namespace trireme::kernels {

namespace detail {

void narrow_bf16_run(const float* __restrict in, Half* __restrict out, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) out[i] = narrow_bf16(in[i]);
}

void narrow_fp16_run(const float* __restrict in, Half* __restrict out, std::int64_t size) {
  std::int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= size; i += 8) {
    const __m128i narrowed =
        _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), narrowed);
  }
#endif
  for (; i < size; ++i) out[i] = narrow_fp16(in[i]);
}

void widen_fp16_run(const Half* __restrict in, float* __restrict out, std::int64_t size) {
  std::int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= size; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(narrow));
  }
#endif
  for (; i < size; ++i) out[i] = widen_fp16(in[i]);
}

namespace {

void widen_bf16_run(const Half* __restrict in, float* __restrict out, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) out[i] = widen_bf16(in[i]);
}

struct NarrowStochastic {
  std::span<const float> in;
  Half* out;
  std::uint64_t key;
  std::uint64_t first_element;

  void operator()(std::int64_t block) const {
    const Run part = run_of(block, kBlock, std::ssize(in));
    std::uint32_t words[kBlock];
    draw_run(words, part.size, key, first_element + static_cast<std::uint64_t>(part.begin));
    narrow_by_words(in.data() + part.begin, words, out + part.begin, part.size, 0);
  }
};

template <class In, class Out>
struct Convert {
  void (*run)(const In*, Out*, std::int64_t);
  const In* in;
  Out* out;
  std::int64_t size;

  void operator()(std::int64_t block) const {
    const Run part = run_of(block, kBlock, size);
    run(in + part.begin, out + part.begin, part.size);
  }
};

template <class In, class Out>
void convert(std::span<const In> in, std::span<Out> out,
             void (*run)(const In*, Out*, std::int64_t)) {
  ensure(in.size() == out.size(), "conversion between ranges of different length");
  const auto size = static_cast<std::int64_t>(in.size());
  for_each_block(num_blocks(size, kBlock), Convert<In, Out>{run, in.data(), out.data(), size});
}

}  // namespace
}  // namespace detail

void narrow_bf16(std::span<const float> in, std::span<Half> out) {
  detail::convert(in, out, detail::narrow_bf16_run);
}

void narrow_fp16(std::span<const float> in, std::span<Half> out) {
  detail::convert(in, out, detail::narrow_fp16_run);
}

void narrow_bf16_stochastic(std::span<const float> in, std::span<Half> out, std::uint64_t key,
                            std::uint64_t first_element) {
  ensure(in.size() == out.size(), "conversion between ranges of different length");
  detail::for_each_block(detail::num_blocks(std::ssize(in), detail::kBlock),
                         detail::NarrowStochastic{in, out.data(), key, first_element});
}

void widen_bf16(std::span<const Half> in, std::span<float> out) {
  detail::convert(in, out, detail::widen_bf16_run);
}

void widen_fp16(std::span<const Half> in, std::span<float> out) {
  detail::convert(in, out, detail::widen_fp16_run);
}

}  // namespace trireme::kernels
