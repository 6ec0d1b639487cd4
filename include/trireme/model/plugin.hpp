// A model from a shared library that was built by somebody else: `model: {plugin: libmine.so,
// args: {..}}`. The library holds one factory:
//
//   trireme::model::PluginModel make(const trireme::model::PluginRequest& request) {
//     auto net = std::make_shared<MyNet>(request.vocab);
//     return {net, [net](const torch::Tensor& tokens_BT) { return net->forward(tokens_BT); }};
//   }
//   TRIREME_REGISTER_MODEL(make)
//
// and is built with trireme_add_plugin(mine mine.cpp) of find_package(trireme). The module is any
// torch::nn::Module; nothing of it knows of ranks, and the factory only constructs it: weights are
// initialised in the constructor and have no memory yet. What the program has, such as
// trireme::checkpoint, may be called.
#pragma once

#include "trireme/base/version.hpp"

#include <torch/nn/module.h>
#include <torch/version.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace trireme::model {

struct PluginRequest {
  std::map<std::string, std::string> args;  // model.args, as texts
  std::int64_t vocab = 0;                   // tokens that the tokenizer, or model.vocab, has
};

struct PluginModel {
  std::shared_ptr<torch::nn::Module> module;
  // Returns the scores [B, T, V] of the next token at every position of int64 tokens [B, T]. May be
  // empty where loss_sum is given; then there is nothing to generate with.
  std::function<torch::Tensor(const torch::Tensor& tokens_BT)> logits;
  // Returns the sum over targets of their losses, a scalar; kIgnoredTarget (-100) adds nothing.
  // Empty: cross entropy of `logits`.
  std::function<torch::Tensor(const torch::Tensor& tokens_BT, const torch::Tensor& targets_BT)>
      loss_sum = {};
};

}  // namespace trireme::model

// What a plug-in was built with, and what loads it, are compared before anything of it is called.
#define TRIREME_PLUGIN_BUILT_WITH "trireme " TRIREME_VERSION_TEXT ", LibTorch " TORCH_VERSION

#define TRIREME_REGISTER_MODEL(factory)                                                       \
  extern "C" __attribute__((visibility("default"))) const char* trireme_plugin_built_with() { \
    return TRIREME_PLUGIN_BUILT_WITH;                                                         \
  }                                                                                           \
  extern "C" __attribute__((visibility("default"))) void trireme_plugin_make(                 \
      const trireme::model::PluginRequest* request, trireme::model::PluginModel* model) {     \
    *model = factory(*request);                                                               \
  }
