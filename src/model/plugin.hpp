// The loader of models from shared libraries.
#pragma once

#include "trireme/model/language_model.hpp"

#include <memory>

namespace trireme::model {

// Throws Config for a file that is no plug-in, or one for another build, naming both.
std::shared_ptr<LanguageModel> load_plugin(const config::Model& shape);

}  // namespace trireme::model
