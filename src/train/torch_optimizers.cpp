#include "torch_optimizers.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

namespace trireme::train {

namespace {

using optim::GroupRule;
using optim::OptimizerOptions;

[[noreturn]] void refuse_differing(const char* what) {
  throw Error(
      ErrorKind::kConfig, fmt::format("the optimizer's groups have different values of {}", what),
      "groups may differ in lr, betas, eps and weight_decay; use two models' optimizers, or "
      "one value");
}

template <class T>
void set_once(T& into, const T& value, bool first, const char* what) {
  if (!first && into != value) refuse_differing(what);
  into = value;
}

// Each fills `rule` with what a group may have for itself and `options` with the rest.
void read(const torch::optim::AdamWOptions& from, bool first, GroupRule& rule,
          OptimizerOptions& options) {
  rule.betas = {std::get<0>(from.betas()), std::get<1>(from.betas())};
  rule.eps = from.eps();
  rule.weight_decay = from.weight_decay();
  set_once(options.amsgrad, from.amsgrad(), first, "amsgrad");
}

void read(const torch::optim::AdamOptions& from, bool first, GroupRule& rule,
          OptimizerOptions& options) {
  rule.betas = {std::get<0>(from.betas()), std::get<1>(from.betas())};
  rule.eps = from.eps();
  rule.weight_decay = from.weight_decay();
  set_once(options.amsgrad, from.amsgrad(), first, "amsgrad");
}

void read(const torch::optim::SGDOptions& from, bool first, GroupRule& rule,
          OptimizerOptions& options) {
  rule.weight_decay = from.weight_decay();
  set_once(options.momentum, from.momentum(), first, "momentum");
  set_once(options.dampening, from.dampening(), first, "dampening");
  set_once(options.nesterov, from.nesterov(), first, "nesterov");
}

void read(const torch::optim::AdagradOptions& from, bool first, GroupRule& rule,
          OptimizerOptions& options) {
  rule.weight_decay = from.weight_decay();
  rule.eps = from.eps();
  set_once(options.lr_decay, from.lr_decay(), first, "lr_decay");
  set_once(options.initial_accumulator, from.initial_accumulator_value(), first,
           "initial_accumulator_value");
}

template <class Options>
TranslatedOptimizer translate_as(const std::string& type, torch::optim::Optimizer& optimizer,
                                 const NameOf& name_of) {
  TranslatedOptimizer result;
  OptimizerOptions& options = result.options;
  options.type = type;
  options.lr = 0;  // of parameters that the optimizer does not have
  options.weight_decay = 0;
  bool first = true;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    GroupRule rule;
    for (const at::Tensor& parameter : group.params()) {
      if (const auto name = name_of(parameter)) rule.names.push_back(*name);
    }
    const bool elsewhere = rule.names.empty();
    read(static_cast<const Options&>(group.options()), first, rule, options);
    first = false;
    if (elsewhere) continue;
    rule.match = fmt::format("group {} of the optimizer", g);
    options.groups.push_back(std::move(rule));
    result.group_of.push_back(g);
  }
  return result;
}

}  // namespace

TranslatedOptimizer translate(torch::optim::Optimizer& optimizer, const NameOf& name_of) {
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr)
    return translate_as<torch::optim::AdamWOptions>("adamw", optimizer, name_of);
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr)
    return translate_as<torch::optim::AdamOptions>("adam", optimizer, name_of);
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr)
    return translate_as<torch::optim::SGDOptions>("sgd", optimizer, name_of);
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr)
    return translate_as<torch::optim::AdagradOptions>("adagrad", optimizer, name_of);
  throw Error(
      ErrorKind::kConfig,
      fmt::format("the optimizer {} cannot be sharded", c10::demangle(typeid(optimizer).name())),
      "use torch::optim::AdamW, Adam, SGD or Adagrad, or optim::OptimizerOptions, which has "
      "adamw, adam, sgd, adagrad, lion and adafactor");
}

std::string fingerprint(const torch::optim::Optimizer& optimizer) {
  std::string text;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = group.options();
    const auto add = [&](const auto&... values) { ((text += fmt::format("{} ", values)), ...); };
    add(group.params().size());
    if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
      add(std::get<0>(adamw->betas()), std::get<1>(adamw->betas()), adamw->eps(),
          adamw->weight_decay(), adamw->amsgrad());
    } else if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
      add(std::get<0>(adam->betas()), std::get<1>(adam->betas()), adam->eps(), adam->weight_decay(),
          adam->amsgrad());
    } else if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
      add(sgd->momentum(), sgd->dampening(), sgd->weight_decay(), sgd->nesterov());
    } else if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradOptions*>(&options)) {
      add(adagrad->lr_decay(), adagrad->weight_decay(), adagrad->eps());
    }
  }
  return text;
}

}  // namespace trireme::train
