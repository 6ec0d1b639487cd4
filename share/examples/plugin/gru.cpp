// A recurrent language model as a plug-in: a stock torch::nn::GRU between an embedding and a head,
// none of which has heard of ranks or shards.
//
//   cmake -S share/examples/plugin -B build/gru -DCMAKE_PREFIX_PATH=<where trireme is installed>
//   cmake --build build/gru
//   mpirun -n 2 trireme train share/examples/plugin/gru.yaml --set model.plugin=build/gru/libgru.so
#include <trireme/model/plugin.hpp>

#include <torch/torch.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>

namespace {

namespace nn = torch::nn;

struct GruModel : nn::Module {
  GruModel(std::int64_t vocab, std::int64_t width, std::int64_t layers)
      : embed(register_module("embed", nn::Embedding(vocab, width))),
        gru(register_module("gru", nn::GRU(nn::GRUOptions(width, width).num_layers(layers).batch_first(true)))),
        head(register_module("head", nn::Linear(width, vocab))) {}

  torch::Tensor forward(const torch::Tensor& tokens_BT) {
    const torch::Tensor hidden_BTC = std::get<0>(gru->forward(embed->forward(tokens_BT)));
    return head->forward(hidden_BTC);
  }

  nn::Embedding embed;
  nn::GRU gru;
  nn::Linear head;
};

std::int64_t number(const trireme::model::PluginRequest& request, const std::string& name, std::int64_t otherwise) {
  const auto found = request.args.find(name);
  return found == request.args.end() ? otherwise : std::stoll(found->second);
}

trireme::model::PluginModel make(const trireme::model::PluginRequest& request) {
  const std::set<std::string> known{"width", "layers"};
  for (const auto& [name, value] : request.args) {
    if (!known.contains(name)) throw std::invalid_argument("no argument is called " + name);
  }
  const auto model =
      std::make_shared<GruModel>(request.vocab, number(request, "width", 64), number(request, "layers", 2));
  return {model, [model](const torch::Tensor& tokens_BT) { return model->forward(tokens_BT); }};
}

}  // namespace

TRIREME_REGISTER_MODEL(make)
