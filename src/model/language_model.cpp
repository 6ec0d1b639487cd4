#include "trireme/model/language_model.hpp"

#include "trireme/base/error.hpp"

#include "gpt2.hpp"
#include "llama.hpp"
#include "plugin.hpp"
#include <fmt/format.h>

#include <algorithm>

namespace trireme::model {
namespace {

void require(bool condition, std::string message, std::string hint) {
  if (!condition) throw Error(ErrorKind::kConfig, std::move(message), std::move(hint));
}

// The matrices of one block that multiply a token.
std::int64_t block_matrices(const config::Model& s) {
  if (s.type == "gpt2") return 4 * s.hidden * s.hidden + 2 * s.hidden * s.intermediate;
  const auto kv_width = s.hidden / s.heads * s.kv_heads;
  return 2 * s.hidden * s.hidden + 2 * s.hidden * kv_width + 3 * s.hidden * s.intermediate;
}

}  // namespace

torch::Tensor LanguageModel::loss_sum(const torch::Tensor& tokens_BT,
                                      const torch::Tensor& targets_BT) {
  return ops::cross_entropy_sum(logits(tokens_BT), targets_BT);
}

torch::Tensor LanguageModel::next_logits(const torch::Tensor& tokens_BT, Past& past) {
  past.tokens_BT = past.length > 0 ? torch::cat({past.tokens_BT, tokens_BT}, 1) : tokens_BT;
  past.length = past.tokens_BT.size(1);
  return logits(past.tokens_BT).select(1, -1);
}

config::Model resolved(config::Model s) {
  if (!s.plugin.empty()) return s;
  require(s.type == "gpt2" || s.type == "llama", fmt::format("model.type: {} is not known", s.type),
          "use gpt2 or llama");
  require(s.layers > 0 && s.hidden > 0 && s.heads > 0 && s.vocab > 0 && s.context > 0 &&
              s.kv_heads >= 0 && s.intermediate >= 0,
          "model: sizes must be positive",
          "vocab comes from the tokenizer where the file does not set it");
  require(s.hidden % s.heads == 0,
          fmt::format("model.heads: {} does not divide model.hidden = {}", s.heads, s.hidden),
          "every head has hidden / heads columns");
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  require(s.heads % s.kv_heads == 0,
          fmt::format("model.kv_heads: {} does not divide model.heads = {}", s.kv_heads, s.heads),
          "each key-value head serves heads / kv_heads query heads");
  if (s.type == "gpt2") {
    require(s.kv_heads == s.heads, "model.kv_heads: gpt2 has one key-value head per head",
            "use llama or leave it out");
    require(s.tied_head, "model.tied_head: gpt2's head is its token table",
            "use llama for a head of its own");
    if (s.intermediate == 0) s.intermediate = 4 * s.hidden;
  } else {
    require(s.hidden / s.heads % 2 == 0, "model.heads: rotary embedding turns pairs of columns",
            "choose heads so that hidden / heads is even");
    if (s.intermediate == 0)
      s.intermediate = (8 * s.hidden + 95) / 96 * 32;  // 8/3 hidden, up to a multiple of 32
  }
  return s;
}

std::shared_ptr<LanguageModel> make(const config::Model& shape) {
  if (!shape.plugin.empty()) return load_plugin(shape);
  const auto s = resolved(shape);
  if (s.type == "gpt2") return std::make_shared<Gpt2>(s);
  return std::make_shared<Llama>(s);
}

std::int64_t num_parameters(const config::Model& shape) {
  const auto s = resolved(shape);
  if (s.type == "gpt2") {
    const auto norms_and_biases =
        9 * s.hidden + s.intermediate;  // 2 (gain, bias); 3 + 1 attention, 1 + F MLP
    return (s.vocab + s.context) * s.hidden + s.layers * (block_matrices(s) + norms_and_biases) +
           2 * s.hidden;
  }
  const auto tables = s.tied_head ? 1 : 2;
  return tables * s.vocab * s.hidden + s.layers * (block_matrices(s) + 2 * s.hidden) + s.hidden;
}

std::int64_t activation_bytes(const config::Model& shape, std::int64_t micro_batch,
                              std::int64_t sequence_length, std::int64_t element,
                              const std::string& recompute) {
  const auto s = resolved(shape);
  const bool gated = s.type == "llama";
  const std::int64_t rows = micro_batch * sequence_length;
  const std::int64_t qkv = s.hidden + 2 * (s.hidden / s.heads * s.kv_heads);
  // Two sums of the stream, two normed rows, attention's output; the MLP's hidden rows before and
  // after the activation. Statistics of norms and attention are in fp32.
  const std::int64_t whole = 5 * s.hidden + qkv + (gated ? 3 : 2) * s.intermediate;
  const std::int64_t statistics = (4 + s.heads) * 4;
  const std::int64_t block = rows * (whole * element + statistics);
  std::int64_t kept = block;
  if (recompute == "attention") kept = block - rows * (qkv * element + s.heads * 4);
  if (recompute == "full") kept = rows * 2 * s.hidden * element;
  // The embedding, the last norm's sum and rows, and the scores.
  const std::int64_t outside = rows * (3 * s.hidden + s.vocab) * element;
  const std::int64_t saved = s.layers * kept + outside;

  // The head's backward: gradients of scores, of rows and of its matrix.
  const std::int64_t table = s.vocab * s.hidden * element;
  const std::int64_t head = rows * (s.vocab + s.hidden) * element + table;
  // A block's: made again where it was not kept, with gradients of the stream and of hidden rows,
  // whose values go as these come; a tied table's gradient waits for the embedding's meanwhile. The
  // scores are gone. (Attention is made again when the hidden rows are gone.)
  const std::int64_t again = recompute == "full" ? block - kept : 0;
  const std::int64_t matrix = s.hidden * s.intermediate * element;
  const std::int64_t in_block = again + rows * (s.intermediate + 3 * s.hidden) * element +
                                2 * matrix + (s.tied_head ? table : 0) - rows * s.vocab * element;
  return saved + std::max(head, in_block);
}

std::int64_t flops_per_token(const config::Model& shape, std::int64_t sequence_length) {
  const auto s = resolved(shape);
  const auto multiplied = s.layers * block_matrices(s) + s.vocab * s.hidden;
  return 6 * multiplied + 12 * s.layers * s.hidden * sequence_length;
}

}  // namespace trireme::model
