// gelu_tanh and swiglu: the kernels room's loops as differentiable operators.
#include "trireme/kernels/activation.hpp"

#include "operator.hpp"
#include <ATen/ops/empty_like.h>

namespace trireme::model::ops {
namespace {

using kernels::Half;

// The kernels room has no torch: bf16 goes to it as bare 16-bit words.
template <class T>
auto in(const Tensor& t) {
  using Stored = std::conditional_t<std::is_same_v<T, float>, float, Half>;
  return std::span(reinterpret_cast<const Stored*>(t.const_data_ptr<T>()),
                   static_cast<std::size_t>(t.numel()));
}
template <class T>
auto out(Tensor& t) {
  using Stored = std::conditional_t<std::is_same_v<T, float>, float, Half>;
  return std::span(reinterpret_cast<Stored*>(t.mutable_data_ptr<T>()),
                   static_cast<std::size_t>(t.numel()));
}

// The kernels know fp32 and bf16; fp16 goes through fp32.
bool must_widen(const Tensor& x) { return x.scalar_type() == at::kHalf; }
Tensor wide(const Tensor& x) { return x.to(at::kFloat); }
Tensor narrow(const Tensor& x) { return x.to(at::kHalf); }

// Calls body with a value of the storage type.
template <class Body>
void by_kernel_type(at::ScalarType type, Body body) {
  if (type == at::kFloat) return body(float{});
  TORCH_CHECK(type == at::kBFloat16, "activations know fp32, bf16 and fp16, not ", type);
  body(BFloat16{});
}

Tensor gelu_tanh_host(const Tensor& x_) {
  if (must_widen(x_)) return narrow(gelu_tanh_host(wide(x_)));
  const auto x = x_.contiguous();
  auto y = at::empty_like(x);
  by_kernel_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, float>)
      kernels::gelu_tanh(in<T>(x), out<T>(y));
    else
      kernels::gelu_tanh_bf16(in<T>(x), out<T>(y));
  });
  return y;
}

Tensor gelu_tanh_backward_host(const Tensor& dy_, const Tensor& x_) {
  if (must_widen(x_)) return narrow(gelu_tanh_backward_host(wide(dy_), wide(x_)));
  const auto x = x_.contiguous(), dy = dy_.contiguous();
  auto dx = at::empty_like(x);
  by_kernel_type(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, float>)
      kernels::gelu_tanh_backward(in<T>(x), in<T>(dy), out<T>(dx));
    else
      kernels::gelu_tanh_backward_bf16(in<T>(x), in<T>(dy), out<T>(dx));
  });
  return dx;
}

Tensor swiglu_host(const Tensor& gate_, const Tensor& up_) {
  if (must_widen(gate_)) return narrow(swiglu_host(wide(gate_), wide(up_)));
  const auto gate = gate_.contiguous(), up = up_.contiguous();
  auto y = at::empty_like(gate);
  by_kernel_type(gate.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, float>)
      kernels::swiglu(in<T>(gate), in<T>(up), out<T>(y));
    else
      kernels::swiglu_bf16(in<T>(gate), in<T>(up), out<T>(y));
  });
  return y;
}

std::tuple<Tensor, Tensor> swiglu_backward_host(const Tensor& dy_, const Tensor& gate_,
                                                const Tensor& up_) {
  if (must_widen(gate_)) {
    const auto [dgate, dup] = swiglu_backward_host(wide(dy_), wide(gate_), wide(up_));
    return {narrow(dgate), narrow(dup)};
  }
  const auto dy = dy_.contiguous(), gate = gate_.contiguous(), up = up_.contiguous();
  auto dgate = at::empty_like(gate), dup = at::empty_like(up);
  by_kernel_type(gate.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, float>)
      kernels::swiglu_backward({in<T>(gate), in<T>(up)}, in<T>(dy), {out<T>(dgate), out<T>(dup)});
    else
      kernels::swiglu_backward_bf16({in<T>(gate), in<T>(up)}, in<T>(dy),
                                    {out<T>(dgate), out<T>(dup)});
  });
  return {dgate, dup};
}

Tensor call_gelu(const Tensor& x) {
  static const auto op = find<decltype(gelu_tanh_host)>("trireme::gelu_tanh");
  return op.call(x);
}

Tensor call_swiglu(const Tensor& gate, const Tensor& up) {
  static const auto op = find<decltype(swiglu_host)>("trireme::swiglu");
  return op.call(gate, up);
}

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const BelowAutograd guard;
    context->save_for_backward({x});
    return call_gelu(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<decltype(gelu_tanh_backward_host)>("trireme::gelu_tanh_backward");
    const BelowAutograd guard;
    return {op.call(gradients[0], context->get_saved_variables()[0])};
  }
};

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    const BelowAutograd guard;
    context->save_for_backward({gate, up});
    return call_swiglu(gate, up);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<decltype(swiglu_backward_host)>("trireme::swiglu_backward");
    const BelowAutograd guard;
    const auto saved = context->get_saved_variables();
    const auto [dgate, dup] = op.call(gradients[0], saved[0], saved[1]);
    return {dgate, dup};
  }
};

Tensor gelu_tanh_autograd(const Tensor& x) { return GeluFunction::apply(x); }
Tensor swiglu_autograd(const Tensor& gate, const Tensor& up) {
  return SwiGluFunction::apply(gate, up);
}

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("gelu_tanh(Tensor x) -> Tensor");
  library.def("gelu_tanh_backward(Tensor dy, Tensor x) -> Tensor");
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward(Tensor dy, Tensor gate, Tensor up) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("gelu_tanh", gelu_tanh_host);
  library.impl("gelu_tanh_backward", gelu_tanh_backward_host);
  library.impl("swiglu", swiglu_host);
  library.impl("swiglu_backward", swiglu_backward_host);
}
TORCH_LIBRARY_IMPL(trireme, Autograd, library) {
  library.impl("gelu_tanh", gelu_tanh_autograd);
  library.impl("swiglu", swiglu_autograd);
}

}  // namespace

Tensor gelu_tanh(const Tensor& x) { return call_gelu(x); }
Tensor swiglu(const Tensor& gate, const Tensor& up) { return call_swiglu(gate, up); }

}  // namespace trireme::model::ops
