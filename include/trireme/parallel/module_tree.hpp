// A module as the engine sees it: names, classes, parameters and buffers, whoever wrote it and
// whatever runs it.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace trireme::parallel {

struct ModuleTree {
  std::string path;           // from the root, e.g. "h.3.mlp"; empty for the root
  std::string class_name;     // without namespaces and without Impl, e.g. "Block"
  bool is_container = false;  // a list, a sequence or a dictionary of modules
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // own, by full name
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::vector<ModuleTree> children;

  // All below and here, in module order.
  std::vector<std::pair<std::string, at::Tensor>> all_parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> all_buffers() const;
};

ModuleTree tree_of(const torch::nn::Module& module);
// A module that TorchScript runs (torch::jit::load). It must outlive the tree.
ModuleTree tree_of(const torch::jit::Module& module);

}  // namespace trireme::parallel
