#include "trireme/model/plugin.hpp"

#include "trireme/base/error.hpp"

#include "plugin.hpp"
#include <dlfcn.h>
#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace trireme::model {

namespace {

constexpr const char* kHint =
    "build it with trireme_add_plugin() of this trireme's find_package(trireme)";

// A language model that stands for a module of somebody else's.
class Plugged : public LanguageModel {
 public:
  Plugged(std::string path, PluginModel model) : path_(std::move(path)), model_(std::move(model)) {}

  std::shared_ptr<torch::nn::Module> network() override { return model_.module; }

  torch::Tensor logits(const torch::Tensor& tokens_BT) override {
    if (model_.logits) return model_.logits(tokens_BT);
    throw Error(ErrorKind::kConfig, fmt::format("{} gives a loss, but no scores", path_),
                "set PluginModel::logits in its factory");
  }

  torch::Tensor loss_sum(const torch::Tensor& tokens_BT, const torch::Tensor& targets_BT) override {
    return model_.loss_sum ? model_.loss_sum(tokens_BT, targets_BT)
                           : LanguageModel::loss_sum(tokens_BT, targets_BT);
  }

  void recompute_attention(const Recompute& /*how*/) override {
    throw Error(ErrorKind::kInternal, "a plug-in recomputes what it likes");
  }

 private:
  std::string path_;
  PluginModel model_;
};

// dlopen takes a name without a slash for one of a system library.
std::string as_path(const std::string& file) {
  return file.find('/') == std::string::npos ? "./" + file : file;
}

void* open(const std::string& path) {
  // Never closed: the module's code is in it.
  void* const library = dlopen(as_path(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(ErrorKind::kConfig, fmt::format("model.plugin: {}", dlerror()), kHint);
  return library;
}

template <class Function>
Function find(void* library, const std::string& path, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    throw Error(ErrorKind::kConfig,
                fmt::format("model.plugin: {} registers no model (it has no {})", path, name),
                "put TRIREME_REGISTER_MODEL(factory) into one source of it");
  }
  return reinterpret_cast<Function>(found);
}

void require_same_build(void* library, const std::string& path) {
  const std::string theirs = find<const char* (*)()>(library, path, "trireme_plugin_built_with")();
  if (theirs == TRIREME_PLUGIN_BUILT_WITH) return;
  throw Error(ErrorKind::kConfig,
              fmt::format("model.plugin: {} was built with {}, and this is {}", path, theirs,
                          TRIREME_PLUGIN_BUILT_WITH),
              kHint);
}

}  // namespace

std::shared_ptr<LanguageModel> load_plugin(const config::Model& shape) {
  const std::string& path = shape.plugin;
  void* const library = open(path);
  require_same_build(library, path);
  const auto make =
      find<void (*)(const PluginRequest*, PluginModel*)>(library, path, "trireme_plugin_make");
  const PluginRequest request{shape.args, shape.vocab};
  PluginModel model;
  try {
    make(&request, &model);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& exception) {
    throw Error(ErrorKind::kConfig,
                fmt::format("model.plugin: the factory of {} failed: {}", path, exception.what()),
                "look at model.args");
  }
  if (model.module == nullptr || (!model.logits && !model.loss_sum)) {
    throw Error(ErrorKind::kConfig,
                fmt::format("model.plugin: the factory of {} gave no module, or neither logits nor "
                            "loss_sum",
                            path),
                "see trireme/model/plugin.hpp");
  }
  return std::make_shared<Plugged>(path, std::move(model));
}

}  // namespace trireme::model
