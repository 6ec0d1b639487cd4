// What user code must not do to weights that an engine has taken over, found before it can spoil a
// step: change them in place, give them other memory, or register more of them.
#pragma once

#include "trireme/parallel/units.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::parallel {

class WeightGuard {
 public:
  // Lists all parameters of the module as it is now.
  using List = std::function<std::vector<at::Tensor>()>;

  // Remembers the parameters as they are, which is as the engine made them.
  void remember(const std::vector<UnitParameters>& units);
  // Whom check_list() asks; without it there is nobody to ask.
  void watch(List list) { list_ = std::move(list); }

  // Throws Config naming the parameter. A change through Tensor::data() cannot be seen.
  void check_weights() const;
  void check_list() const;

 private:
  struct Known {
    std::string name;
    at::Tensor parameter;
    const c10::StorageImpl* storage;
    std::int64_t version;
  };
  std::vector<Known> known_;
  List list_;
};

}  // namespace trireme::parallel
