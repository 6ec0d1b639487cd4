// A module that gives a loss and no scores, with a branch on data, a layer used twice and a part that is computed again in
// backward by a function of the program that loads it.
#include "trireme/model/plugin.hpp"
#include "trireme/parallel/recompute.hpp"

#include <torch/torch.h>

#include <memory>

namespace {

namespace nn = torch::nn;

struct Odd : nn::Module {
  explicit Odd(std::int64_t vocab)
      : embed(register_module("embed", nn::Embedding(vocab, 32))),
        mix(register_module("mix", nn::Linear(32, 32))),
        other(register_module("other", nn::Linear(32, 32))),
        head(register_module("head", nn::Linear(32, vocab))) {}

  torch::Tensor loss(const torch::Tensor& tokens_BT, const torch::Tensor& targets_BT) {
    torch::Tensor x = embed->forward(tokens_BT);
    const auto again = [this](const torch::Tensor& in) { return torch::tanh(mix->forward(in)); };
    x = trireme::checkpoint_one(again, trireme::checkpoint_one(again, x));
    if (tokens_BT[0][0].item<std::int64_t>() % 2 == 0) x = x + other->forward(x);
    return nn::functional::cross_entropy(
        head->forward(x).to(torch::kFloat).flatten(0, 1), targets_BT.flatten(),
        nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-100));
  }

  nn::Embedding embed;
  nn::Linear mix, other, head;
};

trireme::model::PluginModel make(const trireme::model::PluginRequest& request) {
  const auto model = std::make_shared<Odd>(request.vocab);
  return {model, {}, [model](const torch::Tensor& tokens_BT, const torch::Tensor& targets_BT) {
            return model->loss(tokens_BT, targets_BT);
          }};
}

}  // namespace

TRIREME_REGISTER_MODEL(make)
