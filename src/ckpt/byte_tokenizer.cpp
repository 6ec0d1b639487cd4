#include "ckpt/byte_tokenizer.hpp"

#include <nlohmann/json.hpp>

namespace trireme::ckpt {

namespace {

using Json = nlohmann::ordered_json;

// Byte-level tokenizers write every byte as one printable character: printable ones of Latin-1 as
// they are, the others in order from U+0100 on.
std::string printable(int byte, int& next) {
  const bool as_it_is =
      (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  const int code = as_it_is ? byte : next++;
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

Json byte_level(bool with_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", with_regex}};
}

}  // namespace

std::string byte_tokenizer_json() {
  Json vocabulary = Json::object();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) vocabulary[printable(byte, next)] = byte;
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level(false)},
                     {"post_processor", nullptr},
                     {"decoder", byte_level(true)},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"vocab", vocabulary},
                       {"merges", Json::array()}}}};
  return json.dump(1) + "\n";
}

std::string byte_tokenizer_config_json(std::int64_t context) {
  return Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"model_max_length", context},
              {"clean_up_tokenization_spaces", false}}
             .dump(2) +
         "\n";
}

}  // namespace trireme::ckpt
