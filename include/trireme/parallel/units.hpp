// From a module to units: which parameters are made present, released and reduced together.
#pragma once

#include "trireme/parallel/layout.hpp"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace trireme::parallel {

// The parameters of one unit, in module order, each once.
struct UnitParameters {
  std::string name;
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
};

// Units are the outermost repeated blocks: modules with parameters that share a parent and a class
// with a sibling. What lies before, between and after them forms units of its own. A parameter that
// is registered twice (tied) belongs to the unit where it comes first. `policy` is "auto". Throws
// Config when the module has no parameters, or when some are not floating point.
std::vector<UnitParameters> find_units(const torch::nn::Module& module, const std::string& policy);

// Returns the layout's input: names and shapes.
std::vector<Unit> describe(const std::vector<UnitParameters>& units);

}  // namespace trireme::parallel
