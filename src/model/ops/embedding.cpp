// embed: rows of the token table plus rows of the position table. The backward pass adds a token's
// gradients in fp32, in the order of its occurrences, and rounds once: torch's own adds them in
// bf16, which loses most of a frequent token's.
#include "lanes.hpp"
#include "operator.hpp"
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

namespace trireme::model::ops {
namespace {

using lanes::for_lanes;

void check_tokens(const Tensor& tokens, std::int64_t num_rows) {
  const auto* ids = tokens.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i)
    TORCH_CHECK_INDEX(ids[i] >= 0 && ids[i] < num_rows, "token ", ids[i], " is not in a table of ",
                      num_rows, " rows");
}

Tensor embed_host(const Tensor& tokens_, const Tensor& table_, const MaybeTensor& positions_) {
  const auto tokens = tokens_.contiguous(), table = table_.contiguous(),
             positions = contiguous(positions_);
  const auto B = tokens.size(0), T = tokens.size(1), C = table.size(1);
  check_tokens(tokens, table.size(0));
  TORCH_CHECK_INDEX(!positions.defined() || positions.size(0) >= T, "a sequence of ", T,
                    " exceeds the model's context");
  auto rows_BTC = at::empty({B, T, C}, table.options());
  by_type(table.scalar_type(), [&](auto type) {
    using S = decltype(type);
    const auto* ids = tokens.const_data_ptr<std::int64_t>();
    const S *from = table.const_data_ptr<S>(), *added = data_or_null<S>(positions);
    S* to = rows_BTC.mutable_data_ptr<S>();
    for (std::int64_t row = 0; row < B * T; ++row)
      for_lanes(C, [&](std::int64_t i, auto count) {
        auto value = lanes::load(from + ids[row] * C + i, count);
        if (added) value += lanes::load(added + row % T * C + i, count);
        lanes::store(to + row * C + i, value, count);
      });
  });
  return rows_BTC;
}

// out = the sum of rows first, first + 1, ... of the list, in fp32.
template <class S, class RowAt>
void sum_rows(std::int64_t num_rows, RowAt row_at, std::int64_t width, S* out) {
  for_lanes(width, [&](std::int64_t i, auto count) {
    lanes::Floats total{};
    for (std::int64_t n = 0; n < num_rows; ++n) total += lanes::load(row_at(n) + i, count);
    lanes::store(out + i, total, count);
  });
}

template <class S>
void add_by_token(const std::int64_t* ids, std::int64_t num_tokens, const S* gradients,
                  std::int64_t width, S* table) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_tokens));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return ids[a] < ids[b]; });
  for (auto first = order.begin(); first != order.end();) {
    const auto token = ids[*first];
    const auto end = std::find_if(first, order.end(), [&](auto i) { return ids[i] != token; });
    sum_rows(
        end - first, [&](std::int64_t n) { return gradients + first[n] * width; }, width,
        table + token * width);
    first = end;
  }
}

std::tuple<Tensor, Tensor> embed_backward_host(const Tensor& dy_, const Tensor& tokens_,
                                               std::int64_t num_rows, std::int64_t num_positions) {
  const auto dy = dy_.contiguous(), tokens = tokens_.contiguous();
  const auto B = dy.size(0), T = dy.size(1), C = dy.size(2);
  auto dtable = at::zeros({num_rows, C}, dy.options());
  Tensor dpositions;
  if (num_positions > 0) dpositions = at::zeros({num_positions, C}, dy.options());
  by_type(dy.scalar_type(), [&](auto type) {
    using S = decltype(type);
    const S* gradients = dy.const_data_ptr<S>();
    add_by_token(tokens.const_data_ptr<std::int64_t>(), B * T, gradients, C,
                 dtable.mutable_data_ptr<S>());
    for (std::int64_t t = 0; num_positions > 0 && t < T; ++t)
      sum_rows(
          B, [&](std::int64_t b) { return gradients + (b * T + t) * C; }, C,
          dpositions.mutable_data_ptr<S>() + t * C);
  });
  return {dtable, dpositions};
}

Tensor call(const Tensor& tokens, const Tensor& table, const MaybeTensor& positions) {
  static const auto op = find<decltype(embed_host)>("trireme::embed");
  return op.call(tokens, table, positions);
}

struct EmbedFunction : torch::autograd::Function<EmbedFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& tokens, const Tensor& table,
                        const MaybeTensor& positions) {
    const BelowAutograd guard;
    context->save_for_backward({tokens});
    context->saved_data["rows"] = table.size(0);
    context->saved_data["positions"] = positions ? positions->size(0) : 0;
    return call(tokens, table, positions);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find<decltype(embed_backward_host)>("trireme::embed_backward");
    const BelowAutograd guard;
    const auto [dtable, dpositions] =
        op.call(gradients[0], context->get_saved_variables()[0],
                context->saved_data["rows"].toInt(), context->saved_data["positions"].toInt());
    return {{}, dtable, dpositions};
  }
};

Tensor embed_autograd(const Tensor& tokens, const Tensor& table, const MaybeTensor& positions) {
  return EmbedFunction::apply(tokens, table, positions);
}

TORCH_LIBRARY_FRAGMENT(trireme, library) {
  library.def("embed(Tensor tokens, Tensor table, Tensor? positions) -> Tensor");
  library.def(
      "embed_backward(Tensor dy, Tensor tokens, int num_rows, int num_positions) -> (Tensor, "
      "Tensor)");
}
TORCH_LIBRARY_IMPL(trireme, CPU, library) {
  library.impl("embed", embed_host);
  library.impl("embed_backward", embed_backward_host);
}
TORCH_LIBRARY_IMPL(trireme, Autograd, library) { library.impl("embed", embed_autograd); }

}  // namespace

Tensor embed(const Tensor& tokens_BT, const Tensor& table_VC, const Tensor& positions_TC) {
  const auto type = widest({&table_VC, &positions_TC});
  return call(tokens_BT, as_type(table_VC, type), maybe(as_type(positions_TC, type)));
}

}  // namespace trireme::model::ops
