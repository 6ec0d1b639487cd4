// A model's shape as Hugging Face transformers writes it: config.json of gpt2 and llama.
#pragma once

#include "trireme/config/config.hpp"

#include <string>
#include <string_view>

namespace trireme::config {

// Returns the shape that the text of a config.json describes, every size set. `name` is for
// messages. Throws Corrupt when it is no such file, and one Config error that lists everything in
// it that the models here do not compute the same way: another activation, scaled rotary
// embeddings, biases, ...
Model model_from_hugging_face(std::string_view text, std::string_view name);

// Returns the text of config.json. All sizes of `model` must be set (none 0). `dtype` is
// transformers' name of the type of the weights beside it: "float32", "bfloat16", "float16".
std::string model_to_hugging_face(const Model& model, std::string_view dtype);

}  // namespace trireme::config
