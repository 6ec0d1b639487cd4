#include "trireme/parallel/module_tree.hpp"

#include <c10/util/Type.h>
#include <torch/script.h>
#include <torch/torch.h>

namespace trireme::parallel {

namespace {

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// "(anonymous namespace)::BlockImpl" -> "Block". Template arguments stay.
std::string short_class(std::string name) {
  const std::size_t arguments = name.find('<');
  const std::size_t scope = name.rfind("::", arguments);
  if (scope != std::string::npos) name.erase(0, scope + 2);
  constexpr std::string_view kSuffix = "Impl";
  if (arguments == std::string::npos && name.size() > kSuffix.size() && name.ends_with(kSuffix))
    name.resize(name.size() - kSuffix.size());
  return name;
}

bool contains_modules(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}

ModuleTree native(const torch::nn::Module& module, const std::string& path) {
  ModuleTree tree;
  tree.path = path;
  tree.class_name = short_class(c10::demangle(typeid(module).name()));
  tree.is_container = contains_modules(module);
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    tree.parameters.emplace_back(join(path, item.key()), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    tree.buffers.emplace_back(join(path, item.key()), item.value());
  for (const auto& item : module.named_children())
    tree.children.push_back(native(*item.value(), join(path, item.key())));
  return tree;
}

ModuleTree scripted(const torch::jit::Module& module, const std::string& path) {
  ModuleTree tree;
  tree.path = path;
  const auto name = module.type()->name();
  tree.class_name = name ? name->name() : "";
  tree.is_container = tree.class_name == "ModuleList" || tree.class_name == "Sequential" ||
                      tree.class_name == "ModuleDict";
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    tree.parameters.emplace_back(join(path, item.name), item.value);
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    tree.buffers.emplace_back(join(path, item.name), item.value);
  for (const auto& item : module.named_children())
    tree.children.push_back(scripted(item.value, join(path, item.name)));
  return tree;
}

template <class Take>
void walk(const ModuleTree& tree, const Take& take) {
  take(tree);
  for (const ModuleTree& child : tree.children) walk(child, take);
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> ModuleTree::all_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  walk(*this, [&](const ModuleTree& tree) {
    all.insert(all.end(), tree.parameters.begin(), tree.parameters.end());
  });
  return all;
}

std::vector<std::pair<std::string, at::Tensor>> ModuleTree::all_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  walk(*this, [&](const ModuleTree& tree) {
    all.insert(all.end(), tree.buffers.begin(), tree.buffers.end());
  });
  return all;
}

ModuleTree tree_of(const torch::nn::Module& module) { return native(module, ""); }
ModuleTree tree_of(const torch::jit::Module& module) { return scripted(module, ""); }

}  // namespace trireme::parallel
