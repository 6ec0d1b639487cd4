#include "trireme/kernels/accumulate.hpp"

#include "blocks.hpp"
#include "half_bits.hpp"

#include <algorithm>
#include <array>

namespace trireme::kernels {

namespace {

using detail::kBlock;
using detail::Run;

void add_run(float* __restrict into, const float* __restrict in, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) into[i] += in[i];
}

void add_bf16_run(float* __restrict into, const Half* __restrict in, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) into[i] += detail::widen_bf16(in[i]);
}

void add_fp16_run(float* __restrict into, const Half* __restrict in, std::int64_t size) {
  constexpr std::int64_t kChunk = 512;
  std::array<float, kChunk> wide;
  for (std::int64_t at = 0; at < size; at += kChunk) {
    const std::int64_t part = std::min(kChunk, size - at);
    detail::widen_fp16_run(in + at, wide.data(), part);
    add_run(into + at, wide.data(), part);
  }
}

void sum_run(const float* __restrict a, const float* __restrict b, float* __restrict out,
             std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) out[i] = a[i] + b[i];
}

struct Add {
  std::span<float> into;
  std::span<const float> in;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kBlock, std::ssize(into));
    add_run(into.data() + part.begin, in.data() + part.begin, part.size);
  }
};

struct AddBf16 {
  std::span<float> into;
  std::span<const Half> in;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kBlock, std::ssize(into));
    add_bf16_run(into.data() + part.begin, in.data() + part.begin, part.size);
  }
};

struct AddFp16 {
  std::span<float> into;
  std::span<const Half> in;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kBlock, std::ssize(into));
    add_fp16_run(into.data() + part.begin, in.data() + part.begin, part.size);
  }
};

struct Sum {
  std::span<const float> a;
  std::span<const float> b;
  std::span<float> out;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kBlock, std::ssize(out));
    sum_run(a.data() + part.begin, b.data() + part.begin, out.data() + part.begin, part.size);
  }
};

}  // namespace

void add(std::span<float> into, std::span<const float> in) {
  ensure(into.size() == in.size(), "add: ranges of different length");
  detail::for_each_block(detail::num_blocks(std::ssize(into), kBlock), Add{into, in});
}

void add_bf16(std::span<float> into, std::span<const Half> in) {
  ensure(into.size() == in.size(), "add_bf16: ranges of different length");
  detail::for_each_block(detail::num_blocks(std::ssize(into), kBlock), AddBf16{into, in});
}

void add_fp16(std::span<float> into, std::span<const Half> in) {
  ensure(into.size() == in.size(), "add_fp16: ranges of different length");
  detail::for_each_block(detail::num_blocks(std::ssize(into), kBlock), AddFp16{into, in});
}

// In place it is `add`: addition commutes, and each kernel may then assume that its pointers do not
// alias.
void sum(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  ensure(a.size() == out.size() && b.size() == out.size(), "sum: ranges of different length");
  if (out.data() == a.data()) return add(out, b);
  if (out.data() == b.data()) return add(out, a);
  detail::for_each_block(detail::num_blocks(std::ssize(out), kBlock), Sum{a, b, out});
}

}  // namespace trireme::kernels
