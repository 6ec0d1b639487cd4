// causal_attention: exact attention block by block, with nothing of size T x T in memory and no
// product of a block that the mask hides.
//
// A block of kBlock queries meets all keys up to its last one: scores and probabilities of one
// block fit in cache. The backward pass makes the probabilities again from the log-sums that the
// forward pass kept, and works on transposed scores (keys in rows), because then queries, keys,
// values and their gradients are left operands as they lie in memory and the softmax is the same
// arithmetic in every lane. Products are LibTorch's brgemm (fp32 accumulation): in bf16 its right
// operand is packed in pairs of rows where the machine multiplies pairs.
//
// Shape suffixes: ops.hpp, and Q queries of a block (kBlock; the rest of a last block is zero), K
// keys that they see.
#include "operator.hpp"
#include "transpose.hpp"
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <new>

namespace trireme::model::ops {
namespace {

using lanes::Floats;
using lanes::for_lanes;
using lanes::kLanes;

constexpr std::int64_t kBlock = 64;

struct Sizes {
  std::int64_t B, T, H, G, D;
  std::int64_t packed() const { return (H + 2 * G) * D; }
  std::int64_t heads_per_group() const { return H / G; }
  std::int64_t even_T() const { return (T + 1) / 2 * 2; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(D)); }
};

// Tiles are loaded a cache line at a time: operands that start within one halve the speed of a
// product.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAllocator() = default;
  template <class U>
  explicit LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
};
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

// Whether brgemm wants its right operand's rows interleaved in pairs.
template <class T>
bool in_pairs() {
  if constexpr (std::is_same_v<T, float>) return false;
  static const bool paired = at::native::cpublas::could_pack(at::kBFloat16);
  return paired;
}

struct Product {
  std::int64_t rows, columns, depth;
  std::int64_t left_stride;
  bool add;
};

// out = left right (+ out); `right` and `out` have rows of `columns` elements, `right` as
// pack_right leaves it.
template <class T>
void multiply(const Product& p, const T* left, const T* right, float* out) {
  at::native::cpublas::brgemm(p.rows, p.columns, p.depth, p.left_stride, p.columns, p.columns,
                              p.add, left, right, out, in_pairs<T>());
}

// Makes `rows` x `columns` a right operand; an odd last row is paired with zeros.
template <class T>
void pack_right(const T* in, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* out) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (in_pairs<T>()) {
      for (std::int64_t r = 0; r + 1 < rows; r += 2)
        interleave(in + r * stride, in + (r + 1) * stride, columns, out + r * columns);
      if (rows % 2) {
        const std::vector<T> zeros(static_cast<std::size_t>(columns), T(0.0F));
        interleave(in + (rows - 1) * stride, zeros.data(), columns, out + (rows - 1) * columns);
      }
      return;
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(in + r * stride, columns, out + r * columns);
  if (rows % 2) std::fill_n(out + rows * columns, columns, T(0.0F));
}

// Makes the transpose of `rows` x `columns` a right operand with `width` columns, those beyond
// `rows` zero.
template <class T>
void pack_right_transposed(const T* in, std::int64_t stride, std::int64_t rows,
                           std::int64_t columns, std::int64_t width, T* out) {
  if (rows < width) std::fill_n(out, columns * width, T(0.0F));
  if (!in_pairs<T>()) return transpose(in, stride, out, width, rows, columns);
  // A pair of one row's neighbours is one word, and stays one.
  transpose(reinterpret_cast<const std::uint32_t*>(in), stride / 2,
            reinterpret_cast<std::uint32_t*>(out), width, rows, columns / 2);
}

// One query's softmax over its `visible` first scores; fills the row up to `width` with zeros.
// Returns the log-sum and leaves exponentials that are still to be divided by *sum.
template <class T>
float softmax_row(const float* scores, std::int64_t visible, std::int64_t width, float scale,
                  T* out, float* sum) {
  Floats top = lanes::all(-INFINITY);
  for_lanes(visible, [&](std::int64_t i, auto count) {
    top = lanes::greater_of(lanes::only(lanes::load(scores + i, count), count, -INFINITY), top);
  });
  const float greatest = lanes::greatest(top) * scale;
  Floats total{};
  for_lanes(visible, [&](std::int64_t i, auto count) {
    const auto e =
        lanes::only(lanes::exp(lanes::load(scores + i, count) * scale - greatest), count, 0);
    lanes::store(out + i, e, count);
    total += e;
  });
  std::fill(out + visible, out + width, T(0.0F));
  *sum = lanes::sum(total);
  return greatest + std::log(*sum);
}

// One sequence and one group of heads; forward and backward are loops over these.
template <class T>
struct Group {
  const Sizes& sizes;
  const T* qkv;  // the sequence's first row
  std::int64_t group;

  const T* q(std::int64_t head, std::int64_t t) const {
    return qkv + t * sizes.packed() + head * sizes.D;
  }
  const T* k(std::int64_t t) const { return q(sizes.H + group, t); }
  const T* v(std::int64_t t) const { return q(sizes.H + sizes.G + group, t); }
};

template <class T>
struct ForwardScratch {
  explicit ForwardScratch(const Sizes& s)
      : keys(static_cast<std::size_t>(s.D * s.even_T())),
        values(keys.size()),
        probabilities(static_cast<std::size_t>(kBlock * s.even_T())),
        scores(static_cast<std::size_t>(kBlock * s.even_T())),
        out(static_cast<std::size_t>(kBlock * s.D)) {}
  Lines<T> keys, values, probabilities;  // right operands, then a left one
  Lines<float> scores, out;
};

template <class T>
struct ForwardOutputs {
  T* out;           // the sequence's first row, H D wide
  float* log_sums;  // [H, T]
};

template <class T>
void attend_block(const Group<T>& g, std::int64_t head, std::int64_t first, ForwardScratch<T>& s,
                  ForwardOutputs<T> to) {
  const auto& z = g.sizes;
  const auto queries = std::min(kBlock, z.T - first), keys = first + queries,
             even_keys = (keys + 1) / 2 * 2;
  // The packed keys have T columns; a product over the first `keys` of them steps over the rest.
  at::native::cpublas::brgemm(queries, keys, z.D, z.packed(), z.T, even_keys, false,
                              g.q(head, first), s.keys.data(), s.scores.data(), in_pairs<T>());
  float sums[kBlock];
  for (std::int64_t i = 0; i < queries; ++i)
    to.log_sums[head * z.T + first + i] =
        softmax_row(s.scores.data() + i * even_keys, first + i + 1, even_keys, z.scale(),
                    s.probabilities.data() + i * even_keys, &sums[i]);
  multiply({queries, z.D, even_keys, even_keys, false}, s.probabilities.data(), s.values.data(),
           s.out.data());
  for (std::int64_t i = 0; i < queries; ++i)
    for_lanes(z.D, [&](std::int64_t d, auto count) {
      lanes::store(to.out + (first + i) * z.H * z.D + head * z.D + d,
                   lanes::load(s.out.data() + i * z.D + d, count) * (1 / sums[i]), count);
    });
}

template <class T>
void attend(const Group<T>& g, ForwardScratch<T>& s, ForwardOutputs<T> to) {
  const auto& z = g.sizes;
  pack_right_transposed(g.k(0), z.packed(), z.T, z.D, z.T, s.keys.data());
  pack_right(g.v(0), z.packed(), z.T, z.D, s.values.data());
  for (auto head = g.group * z.heads_per_group(); head < (g.group + 1) * z.heads_per_group();
       ++head)
    for (std::int64_t first = 0; first < z.T; first += kBlock) attend_block(g, head, first, s, to);
}

template <class T>
struct BackwardScratch {
  explicit BackwardScratch(const Sizes& s)
      : keys_DT(size(s.D * s.even_T())),
        q_DQ(size(s.D * kBlock)),
        q_QD(q_DQ.size()),
        dout_DQ(q_DQ.size()),
        dout_QD(q_DQ.size()),
        p_KQ(size(s.even_T() * kBlock)),
        ds_KQ(p_KQ.size()),
        ds_pairs_KQ(p_KQ.size()),
        scores_KQ(p_KQ.size()),
        dp_KQ(p_KQ.size()),
        dq_DQ(size(s.D * kBlock)),
        dq_QD(dq_DQ.size()),
        dk_TD(size(s.T * s.D)),
        dv_TD(dk_TD.size()) {}
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  Lines<T> keys_DT, q_DQ, q_QD, dout_DQ, dout_QD, p_KQ, ds_KQ, ds_pairs_KQ;
  Lines<float> scores_KQ, dp_KQ, dq_DQ, dq_QD, dk_TD, dv_TD;
};

template <class T>
struct BackwardArrays {
  const T *out, *dout;    // the sequence's first row, H D wide
  const float* log_sums;  // [H, T]
  T* dqkv;                // the sequence's first row
};

// What a block's lanes need of their queries.
struct QueryStats {
  float log_sum[kBlock], out_dot_dout[kBlock];
};

template <class T>
QueryStats query_stats(const Sizes& z, std::int64_t head, std::int64_t first, std::int64_t queries,
                       const BackwardArrays<T>& a) {
  QueryStats stats{};
  for (std::int64_t i = 0; i < queries; ++i) {
    const auto at = (first + i) * z.H * z.D + head * z.D;
    Floats total{};
    for_lanes(z.D, [&](std::int64_t d, auto count) {
      total += lanes::load(a.out + at + d, count) * lanes::load(a.dout + at + d, count);
    });
    stats.out_dot_dout[i] = lanes::sum(total);
    stats.log_sum[i] = a.log_sums[head * z.T + first + i];
  }
  return stats;
}

// The parts of two keys' rows that a lane group holds, and how they are stored.
struct KeyPair {
  Floats p[2], ds[2];
};

inline void store_pair(BackwardScratch<float>& s, std::int64_t at, std::int64_t,
                       const KeyPair& pair) {
  for (std::int64_t row = 0; row < 2; ++row) {
    lanes::store(s.p_KQ.data() + at + row * kBlock, pair.p[row]);
    lanes::store(s.ds_KQ.data() + at + row * kBlock, pair.ds[row]);
  }
}

inline void store_pair(BackwardScratch<BFloat16>& s, std::int64_t at, std::int64_t at_pairs,
                       const KeyPair& pair) {
  for (std::int64_t row = 0; row < 2; ++row)
    lanes::store(s.p_KQ.data() + at + row * kBlock, pair.p[row]);
  const auto upper = lanes::to_bf16(pair.ds[0]), lower = lanes::to_bf16(pair.ds[1]);
  std::memcpy(s.ds_KQ.data() + at, &upper, sizeof upper);
  std::memcpy(s.ds_KQ.data() + at + kBlock, &lower, sizeof lower);
  if (!in_pairs<BFloat16>()) return;
  const auto pairs = lanes::paired(upper, lower);
  std::memcpy(s.ds_pairs_KQ.data() + at_pairs, &pairs, sizeof pairs);
}

// Makes p and ds = p (dp - out.dout) of keys `key` and `key` + 1 from their scores, as left
// operands and (ds) as a right one. A key later than a lane's query gives zeros, and so does the
// one that pads an odd number of keys.
template <class T>
void backward_rows(BackwardScratch<T>& s, const QueryStats& stats, std::int64_t key,
                   std::int64_t first, float scale) {
  constexpr Floats kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (std::int64_t i = 0; i < kBlock; i += kLanes) {
    const auto log_sum = lanes::load(stats.log_sum + i),
               along = lanes::load(stats.out_dot_dout + i);
    const auto query = kLane + static_cast<float>(first + i);
    const auto at = key * kBlock + i;
    KeyPair pair;
    for (std::int64_t row = 0; row < 2; ++row) {
      const auto visible = query >= static_cast<float>(key + row);
      const auto p =
          lanes::exp(lanes::load(s.scores_KQ.data() + at + row * kBlock) * scale - log_sum);
      const auto ds = p * (lanes::load(s.dp_KQ.data() + at + row * kBlock) - along);
      pair.p[row] = visible ? p : Floats{};
      pair.ds[row] = visible ? ds : Floats{};
    }
    store_pair(s, at, key * kBlock + 2 * i, pair);
  }
}

template <class T>
void backward_block(const Group<T>& g, std::int64_t head, std::int64_t first, BackwardScratch<T>& s,
                    const BackwardArrays<T>& a) {
  const auto& z = g.sizes;
  const auto queries = std::min(kBlock, z.T - first), keys = first + queries,
             even_keys = (keys + 1) / 2 * 2;
  const auto out_stride = z.H * z.D;
  const T *q = g.q(head, first), *dout = a.dout + first * out_stride + head * z.D;
  const auto even_queries = (queries + 1) / 2 * 2;
  pack_right_transposed(q, z.packed(), queries, z.D, kBlock, s.q_DQ.data());
  pack_right_transposed(dout, out_stride, queries, z.D, kBlock, s.dout_DQ.data());
  pack_right(q, z.packed(), queries, z.D, s.q_QD.data());
  pack_right(dout, out_stride, queries, z.D, s.dout_QD.data());
  multiply({keys, kBlock, z.D, z.packed(), false}, g.k(0), s.q_DQ.data(), s.scores_KQ.data());
  multiply({keys, kBlock, z.D, z.packed(), false}, g.v(0), s.dout_DQ.data(), s.dp_KQ.data());

  const auto stats = query_stats(z, head, first, queries, a);
  for (std::int64_t key = 0; key < keys; key += 2) backward_rows(s, stats, key, first, z.scale());
  const T* ds_right = in_pairs<T>() ? s.ds_pairs_KQ.data() : s.ds_KQ.data();

  multiply({keys, z.D, even_queries, kBlock, true}, s.p_KQ.data(), s.dout_QD.data(),
           s.dv_TD.data());
  multiply({keys, z.D, even_queries, kBlock, true}, s.ds_KQ.data(), s.q_QD.data(), s.dk_TD.data());
  multiply({z.D, kBlock, even_keys, z.even_T(), false}, s.keys_DT.data(), ds_right, s.dq_DQ.data());
  transpose(s.dq_DQ.data(), kBlock, s.dq_QD.data(), z.D, z.D, kBlock);
  for (std::int64_t i = 0; i < queries; ++i)
    for_lanes(z.D, [&](std::int64_t d, auto count) {
      lanes::store(a.dqkv + (first + i) * z.packed() + head * z.D + d,
                   lanes::load(s.dq_QD.data() + i * z.D + d, count) * z.scale(), count);
    });
}

template <class T>
void attend_backward(const Group<T>& g, BackwardScratch<T>& s, const BackwardArrays<T>& a) {
  const auto& z = g.sizes;
  std::fill(s.dk_TD.begin(), s.dk_TD.end(), 0.0F);
  std::fill(s.dv_TD.begin(), s.dv_TD.end(), 0.0F);
  std::fill(s.keys_DT.begin(), s.keys_DT.end(), T(0.0F));
  transpose(g.k(0), z.packed(), s.keys_DT.data(), z.even_T(), z.T, z.D);
  for (auto head = g.group * z.heads_per_group(); head < (g.group + 1) * z.heads_per_group();
       ++head)
    for (std::int64_t first = 0; first < z.T; first += kBlock) backward_block(g, head, first, s, a);
  for (std::int64_t t = 0; t < z.T; ++t) {
    T* dk = a.dqkv + t * z.packed() + (z.H + g.group) * z.D;
    for_lanes(z.D, [&](std::int64_t d, auto count) {
      lanes::store(dk + d, lanes::load(s.dk_TD.data() + t * z.D + d, count) * z.scale(), count);
      lanes::store(dk + z.G * z.D + d, lanes::load(s.dv_TD.data() + t * z.D + d, count), count);
    });
  }
}

Sizes sizes_of(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  TORCH_CHECK(qkv.dim() == 3 && qkv.size(2) % (heads + 2 * kv_heads) == 0 && heads % kv_heads == 0,
              "causal_attention: ", qkv.sizes(), " does not hold ", heads, " + 2 x ", kv_heads,
              " heads");
  return {qkv.size(0), qkv.size(1), heads, kv_heads, qkv.size(2) / (heads + 2 * kv_heads)};
}

// Pairs of a bf16 row are words only if heads begin on even columns. fp16 has no products here.
bool must_widen(const Tensor& qkv, const Sizes& sizes) {
  return qkv.scalar_type() == at::kHalf || (qkv.scalar_type() == at::kBFloat16 && sizes.D % 2);
}

// Calls body with a value of the storage type.
template <class Body>
void by_product_type(at::ScalarType type, Body body) {
  if (type == at::kFloat) return body(float{});
  TORCH_CHECK(type == at::kBFloat16, "attention knows fp32, bf16 and fp16, not ", type);
  body(BFloat16{});
}

// Calls body(sequence, group, scratch) for all, with one scratch per thread.
template <class Scratch, class Body>
void for_groups(const Sizes& sizes, Body body) {
  at::parallel_for(0, sizes.B * sizes.G, 1, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch(sizes);
    for (auto i = begin; i < end; ++i) body(i / sizes.G, i % sizes.G, scratch);
    at::native::cpublas::brgemm_release();
  });
}

std::tuple<Tensor, Tensor> causal_attention_host(const Tensor& qkv_, std::int64_t heads,
                                                 std::int64_t kv_heads) {
  const auto z = sizes_of(qkv_, heads, kv_heads);
  if (must_widen(qkv_, z)) {
    auto [out, log_sums] = causal_attention_host(qkv_.to(at::kFloat), heads, kv_heads);
    return {out.to(qkv_.scalar_type()), log_sums};
  }
  const auto qkv = qkv_.contiguous();
  auto out = at::empty({z.B, z.T, z.H * z.D}, qkv.options());
  auto log_sums = at::empty({z.B, z.H, z.T}, qkv.options().dtype(at::kFloat));
  by_product_type(qkv.scalar_type(), [&](auto type) {
    using T = decltype(type);
    for_groups<ForwardScratch<T>>(
        z, [&](std::int64_t b, std::int64_t group, ForwardScratch<T>& scratch) {
          attend(Group<T>{z, qkv.const_data_ptr<T>() + b * z.T * z.packed(), group}, scratch,
                 ForwardOutputs<T>{out.mutable_data_ptr<T>() + b * z.T * z.H * z.D,
                                   log_sums.mutable_data_ptr<float>() + b * z.H * z.T});
        });
  });
  return {out, log_sums};
}

Tensor causal_attention_backward_host(const Tensor& dout_, const Tensor& qkv_, const Tensor& out_,
                                      const Tensor& log_sums, std::int64_t heads,
                                      std::int64_t kv_heads) {
  const auto z = sizes_of(qkv_, heads, kv_heads);
  if (must_widen(qkv_, z))
    return causal_attention_backward_host(dout_.to(at::kFloat), qkv_.to(at::kFloat),
                                          out_.to(at::kFloat), log_sums, heads, kv_heads)
        .to(qkv_.scalar_type());
  const auto dout = dout_.contiguous(), qkv = qkv_.contiguous(), out = out_.contiguous();
  auto dqkv = at::empty_like(qkv);
  by_product_type(qkv.scalar_type(), [&](auto type) {
    using T = decltype(type);
    for_groups<BackwardScratch<T>>(
        z, [&](std::int64_t b, std::int64_t group, BackwardScratch<T>& scratch) {
          const auto row = b * z.T;
          attend_backward(Group<T>{z, qkv.const_data_ptr<T>() + row * z.packed(), group}, scratch,
                          BackwardArrays<T>{out.const_data_ptr<T>() + row * z.H * z.D,
                                            dout.const_data_ptr<T>() + row * z.H * z.D,
                                            log_sums.const_data_ptr<float>() + row * z.H,
                                            dqkv.mutable_data_ptr<T>() + row * z.packed()});
        });
  });
  return dqkv;
}

std::tuple<Tensor, Tensor> call(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  static const auto op = find<decltype(causal_attention_host)>("trireme::causal_attention");
  return op.call(qkv, heads, kv_heads);
}

struct CausalAttentionFunction : torch::autograd::Function<CausalAttentionFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& qkv, std::int64_t heads,
                               std::int64_t kv_heads) {
    const BelowAutograd guard;
    auto [out, log_sums] = call(qkv, heads, kv_heads);
    context->save_for_backward({qkv, out, log_sums});
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    context->mark_non_differentiable({log_sums});
    return {out, log_sums};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op =
        find<decltype(causal_attention_backward_host)>("trireme::causal_attention_backward");
    const BelowAutograd guard;
    const auto saved = context->get_saved_variables();
    return {op.call(gradients[0], saved[0], saved[1], saved[2],
                    context->saved_data["heads"].toInt(), context->saved_data["kv_heads"].toInt()),
            {},
            {}};
  }
};

std::tuple<Tensor, Tensor> causal_attention_autograd(const Tensor& qkv, std::int64_t heads,
                                                     std::int64_t kv_heads) {
  const auto outputs = CausalAttentionFunction::apply(qkv, heads, kv_heads);
  return {outputs[0], outputs[1]};
}

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def(
      "causal_attention(Tensor qkv, int heads, int kv_heads) -> (Tensor out, Tensor log_sums)");
  library.def(
      "causal_attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor log_sums, int heads, "
      "int kv_heads) -> Tensor");
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("causal_attention", causal_attention_host);
  library.impl("causal_attention_backward", causal_attention_backward_host);
}
TORCH_LIBRARY_IMPL(trireme, Autograd, library) {
  library.impl("causal_attention", causal_attention_autograd);
}

}  // namespace

Tensor causal_attention(const Tensor& qkv_BTP, std::int64_t heads, std::int64_t kv_heads) {
  return std::get<0>(call(qkv_BTP, heads, kv_heads));
}

}  // namespace trireme::model::ops
