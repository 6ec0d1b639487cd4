// What an import keeps of a Hugging Face folder beside weights and shape, as small texts of the
// checkpoint, so that an export gives it back: the tokenizer and the ids of its special tokens.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace trireme::ckpt {

inline constexpr std::string_view kTokenizerFile = "tokenizer.json";
inline constexpr std::string_view kGenerationFile = "generation_config.json";
inline constexpr std::array<std::string_view, 6> kKeptTexts{
    kTokenizerFile,      "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",   kGenerationFile};
// Not a file: {"bos_token_id": .., "eos_token_id": .., "pad_token_id": ..} of config.json.
inline constexpr std::string_view kSpecialTokens = "special_tokens";

// Returns the name of the checkpoint's text.
inline std::string kept_text(std::string_view name) { return "hugging_face/" + std::string(name); }

}  // namespace trireme::ckpt
