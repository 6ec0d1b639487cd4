// From a module to units: which parameters are made present, released and reduced together.
#pragma once

#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/module_tree.hpp"

#include <string>
#include <vector>

namespace trireme::parallel {

// Patterns are regular expressions (ECMAScript) that match anywhere in a name.
struct UnitOptions {
  // auto: the outermost repeated blocks, modules that share a parent and a class with a sibling.
  // none: the whole model is one unit.
  // size:N: modules with at least N parameters that are not in a smaller such module; N may end in
  //   K, M or G (10^3, 10^6, 10^9).
  // Else names of module classes, separated by commas, without namespace, with or without Impl.
  std::string policy = "auto";
  std::vector<std::string> ignored;    // modules, by path: whole on every rank, not trained
  std::vector<std::string> keep_fp32;  // parameters that stay fp32 in the network
  std::vector<std::string> frozen;     // parameters that are not trained
};

// The parameters of one unit, in module order, each once.
struct UnitParameters {
  std::string name;
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  bool trains = true;
  bool keeps_fp32 = false;
  bool permanent = false;  // whole on every rank all the time
};

// What lies before, between and after the modules that the policy picks forms units of its own. A
// unit's parameters are all trained or all frozen, and of one type; where they differ, it becomes
// several. A parameter that is registered twice (tied) belongs to the unit where it comes first.
// Frozen parameters no longer require a gradient. Throws Config when the module has no parameters,
// when some are not floating point, and for a pattern or a class that matches nothing.
std::vector<UnitParameters> find_units(const ModuleTree& tree, const UnitOptions& options);

// Returns the layout's input: names and shapes.
std::vector<Unit> describe(const std::vector<UnitParameters>& units);

}  // namespace trireme::parallel
