// Decoder-only language models as plain torch::nn::Modules. They know nothing of ranks, units or
// shards.
//
// Parameters carry the names and layouts of Hugging Face transformers (GPT2LMHeadModel,
// LlamaForCausalLM), so its weights load by name. Constructors fill whole parameters in place
// (normal_, zero_, fill_) and touch them in no other way: deferred construction records and replays
// exactly that. Parameters may be switched to bf16 from outside; activations then are bf16 as well,
// with fp32 inside norms, softmax, activation functions, rotary embedding and loss. Both types give
// the same bits on every run.
//
// Shape suffixes: B batch, T sequence, V vocabulary.
#pragma once

#include "trireme/config/config.hpp"
#include "trireme/model/ops.hpp"

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::model {

// Runs a part of forward in a way that keeps less for backward: what(inputs), with `inputs` the only
// tensors beside parameters that it reads. Some inputs may be undefined.
using TensorList = std::vector<torch::Tensor>;
using Recompute =
    std::function<TensorList(std::function<TensorList(const TensorList&)> what, TensorList inputs)>;

// The target that counts for nothing, as in torch and transformers.
inline constexpr std::int64_t kIgnoredTarget = -100;

// What a model keeps of the tokens that it has seen; the models fill it.
struct Past {
  std::int64_t length = 0;  // tokens
  std::vector<ops::LayerPast> layers = {};
  torch::Tensor tokens_BT = {};  // where nothing else is kept
};

class LanguageModel : public torch::nn::Module {
 public:
  // Returns the module with the parameters: this one, unless it stands for another.
  virtual std::shared_ptr<torch::nn::Module> network() { return shared_from_this(); }

  // Returns the scores of the next token at every position, in the parameters' type. Token ids are
  // int64.
  virtual torch::Tensor logits(const torch::Tensor& tokens_BT) = 0;

  // Returns the scores [B, V] of the token behind `tokens_BT`, which follow those of `past`, and adds
  // them to it: the same as logits() of all of them, to rounding. Without gradients; length and new tokens together
  // are at most the model's context. A model that does not keep anything computes it all again.
  virtual torch::Tensor next_logits(const torch::Tensor& tokens_BT, Past& past);

  // From now on blocks, or only their attention with the product before it, run by way of `how`;
  // empty: as they are.
  void recompute_blocks(Recompute how) { blocks_how_ = std::move(how); }
  virtual void recompute_attention(const Recompute& how) = 0;

  // Returns the sum over all targets of their cross entropy (an fp32 scalar); kIgnoredTarget adds
  // nothing. Targets are aligned with tokens: targets_BT[b][t] is what should follow
  // tokens_BT[b][t].
  virtual torch::Tensor loss_sum(const torch::Tensor& tokens_BT, const torch::Tensor& targets_BT);

 protected:
  const Recompute& blocks_how() const { return blocks_how_; }

 private:
  Recompute blocks_how_;
};

// Returns the model of `shape`, whose vocab must be resolved. Throws Config if the sizes do not fit
// each other, or for a plug-in (model/plugin.hpp) that cannot be used. (shared_ptr because torch::nn::Module hands out references to itself.)
std::shared_ptr<LanguageModel> make(const config::Model& shape);

// Returns `shape` with every 0 that means "derive it" replaced. Throws Config as make does. What
// follows is for built-in models; nothing is derived for a plug-in.
config::Model resolved(config::Model shape);

std::int64_t num_parameters(const config::Model& shape);

// Returns the most bytes that forward and backward of one micro-batch hold at a time beside the
// weights, by formula: what blocks save for backward (all of it, without the products of attention,
// or only their inputs, by `recompute`: none, attention, full), and the larger of what the head and
// what one block need on top in backward. `element` is the size of the weights' type.
std::int64_t activation_bytes(const config::Model& shape, std::int64_t micro_batch,
                              std::int64_t sequence_length, std::int64_t element,
                              const std::string& recompute);

// Returns 6 N + 12 L d T, forward and backward, where N counts the matrices that multiply a token:
// those of the blocks and the head, tied or not, but neither table lookups nor norms. Attention is
// counted over the full context.
std::int64_t flops_per_token(const config::Model& shape, std::int64_t sequence_length);

}  // namespace trireme::model
