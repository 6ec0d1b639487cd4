// The byte tokenizer in the words of Hugging Face: a token is a byte, its id the byte's value.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::ckpt {

// Returns the text of tokenizer.json: 256 entries, one for each byte, nothing to merge.
std::string byte_tokenizer_json();
// Returns the text of tokenizer_config.json.
std::string byte_tokenizer_config_json(std::int64_t context);

}  // namespace trireme::ckpt
