#include "trireme/kernels/activation.hpp"

#include "blocks.hpp"
#include "elementary.hpp"
#include "half_bits.hpp"

namespace trireme::kernels {

namespace {

using detail::exponential;
using detail::kBlock;
using detail::multiply_add;
using detail::Run;

constexpr float kRoot8OverPi =
    1.59576912F;  // 2 sqrt(2 / pi): 0.5 (1 + tanh(s)) is the sigmoid of 2 s
constexpr float kCubic = 0.044715F;

float load(const float* from, std::int64_t i) { return from[i]; }
float load(const Half* from, std::int64_t i) { return detail::widen_bf16(from[i]); }
void store(float* to, std::int64_t i, float value) { to[i] = value; }
void store(Half* to, std::int64_t i, float value) { to[i] = detail::narrow_bf16(value); }

// One exponential and one division in place of a tanh; where tanh rounds to -1 the result is still
// correct.
float gelu_tanh_of(float x) {
  const float twice_s = kRoot8OverPi * multiply_add(kCubic * x * x, x, x);
  return x / (1.0F + exponential(-twice_s));
}

// Beyond +-10 the derivative is 1 or 0 to 1e-34; the clamp keeps x^2 and the exponential finite.
float gelu_tanh_slope(float x) {
  x = x < -10.0F ? -10.0F : x;
  x = x > 10.0F ? 10.0F : x;
  const float square = x * x;
  const float twice_s = kRoot8OverPi * multiply_add(kCubic * square, x, x);
  const float slope_of_twice_s = kRoot8OverPi * multiply_add(3.0F * kCubic, square, 1.0F);
  const float e = exponential(-twice_s);
  const float sigmoid = 1.0F / (1.0F + e);
  return sigmoid * multiply_add(x * slope_of_twice_s, e * sigmoid, 1.0F);
}

float silu(float x) { return x / (1.0F + exponential(-x)); }

struct SiluAndSlope {
  float value;
  float slope;
};

// Beyond +-85 the slope is 1 or 0 to 1e-34.
SiluAndSlope silu_and_slope(float x) {
  const float low = x < -85.0F ? -85.0F : x;
  const float clamped = low > 85.0F ? 85.0F : low;
  const float e = exponential(-clamped);
  const float sigmoid = x < -85.0F ? 0.0F : 1.0F / (1.0F + e);
  return {x * sigmoid, sigmoid * multiply_add(clamped, e * sigmoid, 1.0F)};
}

// Loads of a run come before its stores in chunks, so that in-place use is defined and nothing has
// to be assumed about aliasing to vectorise.
constexpr std::int64_t kChunk = 256;

template <class T>
void load_chunk(const T* from, float* chunk, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) chunk[i] = load(from, i);
}

template <class T>
void store_chunk(const float* chunk, T* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) store(to, i, chunk[i]);
}

template <class T>
void gelu_tanh_chunk(const T* x, T* y, std::int64_t size) {
  float chunk[kChunk];
  load_chunk(x, chunk, size);
  for (std::int64_t i = 0; i < size; ++i) chunk[i] = gelu_tanh_of(chunk[i]);
  store_chunk(chunk, y, size);
}

template <class T>
void gelu_tanh_backward_chunk(const T* x, const T* dy, T* dx, std::int64_t size) {
  float x_chunk[kChunk];
  float dy_chunk[kChunk];
  load_chunk(x, x_chunk, size);
  load_chunk(dy, dy_chunk, size);
  for (std::int64_t i = 0; i < size; ++i) dy_chunk[i] *= gelu_tanh_slope(x_chunk[i]);
  store_chunk(dy_chunk, dx, size);
}

template <class T>
void swiglu_chunk(const T* gate, const T* up, T* y, std::int64_t size) {
  float gate_chunk[kChunk];
  float up_chunk[kChunk];
  load_chunk(gate, gate_chunk, size);
  load_chunk(up, up_chunk, size);
  for (std::int64_t i = 0; i < size; ++i) up_chunk[i] *= silu(gate_chunk[i]);
  store_chunk(up_chunk, y, size);
}

template <class T>
struct SwiGluBackward {
  SwiGluInputs<T> in;
  std::span<const T> dy;
  SwiGluGradients<T> out;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kChunk, std::ssize(dy));
    float gate[kChunk];
    float up[kChunk];
    float grad[kChunk];
    load_chunk(in.gate.data() + part.begin, gate, part.size);
    load_chunk(in.up.data() + part.begin, up, part.size);
    load_chunk(dy.data() + part.begin, grad, part.size);
    for (std::int64_t i = 0; i < part.size; ++i) {
      const SiluAndSlope s = silu_and_slope(gate[i]);
      gate[i] = grad[i] * up[i] * s.slope;
      up[i] = grad[i] * s.value;
    }
    store_chunk(gate, out.gate.data() + part.begin, part.size);
    store_chunk(up, out.up.data() + part.begin, part.size);
  }
};

template <class T>
struct GeluTanh {
  std::span<const T> x;
  std::span<T> y;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kChunk, std::ssize(x));
    gelu_tanh_chunk(x.data() + part.begin, y.data() + part.begin, part.size);
  }
};

template <class T>
struct GeluTanhBackward {
  std::span<const T> x;
  std::span<const T> dy;
  std::span<T> dx;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kChunk, std::ssize(x));
    gelu_tanh_backward_chunk(x.data() + part.begin, dy.data() + part.begin, dx.data() + part.begin,
                             part.size);
  }
};

template <class T>
struct SwiGlu {
  SwiGluInputs<T> in;
  std::span<T> y;

  void operator()(std::int64_t block) const {
    const Run part = detail::run_of(block, kChunk, std::ssize(y));
    swiglu_chunk(in.gate.data() + part.begin, in.up.data() + part.begin, y.data() + part.begin,
                 part.size);
  }
};

template <class Kernel>
void run(std::size_t size, const Kernel& kernel) {
  detail::for_each_block(detail::num_blocks(static_cast<std::int64_t>(size), kChunk), kernel);
}

template <class T>
void run_swiglu_backward(const SwiGluInputs<T>& in, std::span<const T> dy,
                         const SwiGluGradients<T>& out) {
  ensure(in.gate.size() == dy.size() && in.up.size() == dy.size() && out.gate.size() == dy.size() &&
             out.up.size() == dy.size(),
         "swiglu_backward: ranges of different length");
  run(dy.size(), SwiGluBackward<T>{in, dy, out});
}

}  // namespace

void gelu_tanh(std::span<const float> x, std::span<float> y) {
  ensure(x.size() == y.size(), "gelu_tanh: ranges of different length");
  run(x.size(), GeluTanh<float>{x, y});
}

void gelu_tanh_bf16(std::span<const Half> x, std::span<Half> y) {
  ensure(x.size() == y.size(), "gelu_tanh: ranges of different length");
  run(x.size(), GeluTanh<Half>{x, y});
}

void gelu_tanh_backward(std::span<const float> x, std::span<const float> dy, std::span<float> dx) {
  ensure(x.size() == dy.size() && x.size() == dx.size(),
         "gelu_tanh_backward: ranges of different length");
  run(x.size(), GeluTanhBackward<float>{x, dy, dx});
}

void gelu_tanh_backward_bf16(std::span<const Half> x, std::span<const Half> dy,
                             std::span<Half> dx) {
  ensure(x.size() == dy.size() && x.size() == dx.size(),
         "gelu_tanh_backward: ranges of different length");
  run(x.size(), GeluTanhBackward<Half>{x, dy, dx});
}

void swiglu(std::span<const float> gate, std::span<const float> up, std::span<float> y) {
  ensure(gate.size() == y.size() && up.size() == y.size(), "swiglu: ranges of different length");
  run(y.size(), SwiGlu<float>{{gate, up}, y});
}

void swiglu_bf16(std::span<const Half> gate, std::span<const Half> up, std::span<Half> y) {
  ensure(gate.size() == y.size() && up.size() == y.size(), "swiglu: ranges of different length");
  run(y.size(), SwiGlu<Half>{{gate, up}, y});
}

void swiglu_backward(const SwiGluInputs<float>& inputs, std::span<const float> dy,
                     const SwiGluGradients<float>& gradients) {
  run_swiglu_backward(inputs, dy, gradients);
}

void swiglu_backward_bf16(const SwiGluInputs<Half>& inputs, std::span<const Half> dy,
                          const SwiGluGradients<Half>& gradients) {
  run_swiglu_backward(inputs, dy, gradients);
}

}  // namespace trireme::kernels
