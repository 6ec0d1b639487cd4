#include "trireme/config/hugging_face.hpp"

#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

#include <string>

namespace trireme::config {
namespace {

constexpr const char* kLlama = R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
  "vocab_size": 256, "intermediate_size": 96, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
  "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "head_dim": 16,
  "hidden_act": "silu", "rope_scaling": null})";

std::string refusal(std::string_view text, ErrorKind kind = ErrorKind::kConfig) {
  try {
    model_from_hugging_face(text, "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, kind) << error.report();
    return error.message;
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

TEST(HuggingFace, llamas_config_becomes_a_model) {
  const Model model = model_from_hugging_face(kLlama, "config.json");
  EXPECT_EQ(model.type, "llama");
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.intermediate, 96);
  EXPECT_EQ(model.rope_theta, 500000);
  EXPECT_EQ(model.norm_eps, 1e-6);
  EXPECT_TRUE(model.tied_head);
}

TEST(HuggingFace, what_is_written_reads_back) {
  for (const char* type : {"gpt2", "llama"}) {
    Model model;
    model.type = type;
    model.layers = 3;
    model.hidden = 48;
    model.heads = 4;
    model.kv_heads = model.type == "llama" ? 2 : 4;
    model.context = 40;
    model.vocab = 300;
    model.intermediate = 100;
    model.tied_head = model.type == "gpt2";
    model.norm_eps = 3e-6;
    model.rope_theta = model.type == "llama" ? 12345.0 : Model().rope_theta;
    model.init_std = 0.01;
    EXPECT_EQ(model_from_hugging_face(model_to_hugging_face(model, "float32"), "it"), model);
  }
}

TEST(HuggingFace, gpt2s_inner_width_follows_from_the_outer) {
  const Model model = model_from_hugging_face(
      R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 4,
          "vocab_size": 5, "n_inner": null})",
      "config.json");
  EXPECT_EQ(model.intermediate, 32);
  EXPECT_EQ(model.kv_heads, 2);
}

TEST(HuggingFace, all_that_would_compute_something_else_is_listed) {
  std::string text = kLlama;
  text.replace(text.find("\"silu\""), 6, "\"gelu\"");
  text.replace(text.find("\"default\""), 9, "\"llama3\"");
  text.replace(text.find("\"head_dim\": 16"), 14, "\"head_dim\": 32");
  text.insert(1, R"("attention_bias": true, "mlp_bias": true, )");
  const std::string message = refusal(text);
  for (const char* part : {"hidden_act: \"gelu\"", "rope_parameters:", "head_dim: 32",
                           "attention_bias: true", "mlp_bias: true"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }
}

TEST(HuggingFace, nonsense_is_named) {
  EXPECT_NE(refusal(R"({"model_type": "bert"})").find("\"bert\""), std::string::npos);
  EXPECT_NE(refusal(R"({})").find("model_type: is missing"), std::string::npos);
  EXPECT_NE(refusal(R"({"model_type": "gpt2"})").find("n_layer: is missing"), std::string::npos);
  std::string text = kLlama;
  text.replace(text.find("\"hidden_size\": 64"), 17, "\"hidden_size\": -4");
  EXPECT_NE(refusal(text).find("hidden_size: -4 is no size"), std::string::npos);
  for (const char* broken : {"", "[]", "{", "7"}) refusal(broken, ErrorKind::kCorrupt);
}

}  // namespace
}  // namespace trireme::config
