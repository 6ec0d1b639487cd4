// Hugging Face's tokenizer.json: added tokens, normalizer, pre-tokenizer, model, template, decoder.
// Truncation and padding, which a file may ask for, are of batches and not done here.
#pragma once

#include "trireme/data/tokenizer.hpp"

#include <filesystem>

namespace trireme::data::detail {

// Throws Config for what cannot be opened or is not known, Corrupt for a damaged file.
std::shared_ptr<const Tokenizer> load_hugging_face(const std::filesystem::path& file);
// From the file's text; `name` is for messages.
std::shared_ptr<const Tokenizer> parse_hugging_face(std::string_view text, const std::string& name);

}  // namespace trireme::data::detail
