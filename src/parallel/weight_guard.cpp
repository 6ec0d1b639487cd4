#include "parallel/weight_guard.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <unordered_set>

namespace trireme::parallel {

namespace {

std::int64_t version_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor._version());
}

}  // namespace

void WeightGuard::remember(const std::vector<UnitParameters>& units) {
  known_.clear();
  for (const UnitParameters& unit : units) {
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const at::Tensor& parameter = unit.parameters[i];
      known_.push_back({unit.names[i], parameter, parameter.storage().unsafeGetStorageImpl(),
                        version_of(parameter)});
    }
  }
}

void WeightGuard::check_weights() const {
  for (const Known& known : known_) {
    if (known.parameter.storage().unsafeGetStorageImpl() != known.storage) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("parameter {} was given other memory after the engine had taken it "
                              "over (set_data, or Module::to)",
                              known.name),
                  "convert and load the module before the engine is made");
    }
    if (version_of(known.parameter) != known.version) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("parameter {} was changed in place by something other than the "
                              "optimizer, which would be lost at the next update",
                              known.name),
                  "make it a buffer if forward changes it; else change the engine's state "
                  "(write_state, refresh_work)");
    }
  }
}

void WeightGuard::check_list() const {
  if (!list_) return;
  std::unordered_set<const c10::TensorImpl*> mine;
  for (const Known& known : known_) mine.insert(known.parameter.unsafeGetTensorImpl());
  for (const at::Tensor& parameter : list_()) {
    if (mine.contains(parameter.unsafeGetTensorImpl())) continue;
    throw Error(ErrorKind::kConfig,
                fmt::format("a parameter of shape [{}] was registered after the engine had taken "
                            "over the module; nothing would train it",
                            fmt::join(parameter.sizes(), ", ")),
                "register all parameters before the engine is made");
  }
}

}  // namespace trireme::parallel
