// The "decoder" of a tokenizer.json: tokens to text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace trireme::data::detail {

// From tokens to parts of the text, which follow each other.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// Empty for null: then tokens are joined by spaces. Throws Corrupt for what is malformed and Config
// for a type that is not known.
Decoder make_decoder(const nlohmann::json& json);

}  // namespace trireme::data::detail
