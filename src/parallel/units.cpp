#include "trireme/parallel/units.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

#include <unordered_set>

namespace trireme::parallel {

namespace {

using Named = std::pair<std::string, std::shared_ptr<torch::nn::Module>>;

bool has_parameters(const torch::nn::Module& module) { return !module.parameters().empty(); }

bool has_twin(const torch::nn::Module& child, const std::vector<Named>& siblings) {
  for (const Named& sibling : siblings) {
    if (sibling.second.get() != &child && typeid(*sibling.second) == typeid(child) &&
        has_parameters(*sibling.second)) {
      return true;
    }
  }
  return false;
}

std::vector<Named> children_of(const torch::nn::Module& module) {
  std::vector<Named> children;
  for (const auto& item : module.named_children()) children.emplace_back(item.key(), item.value());
  return children;
}

// Twins make units only inside a container of blocks: two linear layers side by side in one block
// are not units.
bool holds_blocks(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}

class Finder {
 public:
  std::vector<UnitParameters> units;

  void walk(const torch::nn::Module& module, const std::string& prefix) {
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      add_rest(prefix + item.key(), item.value());
    const std::vector<Named> children = children_of(module);
    for (const auto& [name, child] : children) {
      const std::string path = prefix + name;
      // A block is a module with modules inside; a list of bare layers is better left in one unit.
      if (holds_blocks(module) && !child->children().empty() && has_parameters(*child) &&
          has_twin(*child, children)) {
        add_block(*child, path);
      } else {
        walk(*child, path + ".");
      }
    }
  }

 private:
  void add_block(const torch::nn::Module& block, const std::string& path) {
    UnitParameters unit{path, {}, {}};
    for (const auto& item : block.named_parameters())
      add(path + "." + item.key(), item.value(), unit);
    if (!unit.parameters.empty()) units.push_back(std::move(unit));
    in_rest_ = false;
  }

  void add_rest(const std::string& name, const at::Tensor& parameter) {
    if (seen_.contains(parameter.unsafeGetTensorImpl())) return;
    if (!in_rest_) units.push_back({name, {}, {}});
    in_rest_ = true;
    add(name, parameter, units.back());
  }

  void add(const std::string& name, const at::Tensor& parameter, UnitParameters& unit) {
    if (!seen_.insert(parameter.unsafeGetTensorImpl()).second) return;
    if (!parameter.is_floating_point()) {
      throw Error(ErrorKind::kConfig, fmt::format("parameter {} is not floating point", name),
                  "register it as a buffer");
    }
    unit.names.push_back(name);
    unit.parameters.push_back(parameter);
  }

  std::unordered_set<const c10::TensorImpl*> seen_;
  bool in_rest_ = false;
};

}  // namespace

std::vector<UnitParameters> find_units(const torch::nn::Module& module, const std::string& policy) {
  ensure(policy == "auto", "the configuration allows only known policies");
  Finder finder;
  finder.walk(module, "");
  if (finder.units.empty()) {
    throw Error(ErrorKind::kConfig, "the model has no parameters",
                "register them with register_parameter or "
                "register_module");
  }
  return std::move(finder.units);
}

std::vector<Unit> describe(const std::vector<UnitParameters>& units) {
  std::vector<Unit> result;
  for (const UnitParameters& unit : units) {
    Unit& out = result.emplace_back();
    out.name = unit.name;
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      out.slots.push_back({unit.names[i], unit.parameters[i].sizes().vec(), 0, 0,
                           unit.parameters[i].requires_grad()});
    }
  }
  return result;
}

}  // namespace trireme::parallel
