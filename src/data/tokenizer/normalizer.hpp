// The "normalizer" of a tokenizer.json: text to text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace trireme::data::detail {

using Normalizer = std::function<std::string(std::string_view)>;

// Returns an empty function for null. Throws Corrupt for what is malformed and Config for a type
// that is not known.
Normalizer make_normalizer(const nlohmann::json& json);

// Regular expression or text of a "pattern" such as {"Regex": ".."} or {"String": ".."}.
class Regex;
Regex pattern_of(const nlohmann::json& json);

[[noreturn]] void throw_unknown(std::string_view what, std::string_view type,
                                std::string_view known);

}  // namespace trireme::data::detail
