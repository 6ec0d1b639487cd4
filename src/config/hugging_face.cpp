#include "trireme/config/hugging_face.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::config {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostSize = std::int64_t{1} << 31;

// Takes what is needed out of a config.json and collects what is wrong with it.
class Source {
 public:
  Source(std::string_view text, std::string_view name) : name_(name) {
    json_ = Json::parse(text, nullptr, false);
    if (!json_.is_object()) {
      throw Error(ErrorKind::kCorrupt, fmt::format("{} is no JSON object", name_),
                  "give a folder with the config.json that save_pretrained wrote");
    }
  }

  // A key with the value null counts as absent, as it does there.
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t size(const char* key, std::optional<std::int64_t> otherwise = std::nullopt) {
    const Json* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr || !value->is_number_unsigned() ||
        value->get<std::uint64_t>() > kMostSize || value->get<std::uint64_t>() == 0) {
      problem(key, value == nullptr ? "is missing" : fmt::format("{} is no size", value->dump()));
      return 1;
    }
    return value->get<std::int64_t>();
  }
  double number(const char* key, double otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number() && value->get<double>() > 0 &&
        value->get<double>() < std::numeric_limits<double>::infinity())
      return value->get<double>();
    problem(key, fmt::format("{} is no positive number", value->dump()));
    return otherwise;
  }
  bool truth(const char* key, bool otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    problem(key, fmt::format("{} is neither true nor false", value->dump()));
    return otherwise;
  }
  // The models here compute what transformers does for these values only.
  void only(const char* key, const std::vector<Json>& values) {
    const Json* value = find(key);
    if (value == nullptr || std::find(values.begin(), values.end(), *value) != values.end()) return;
    problem(key, fmt::format("{} is not available, only {}", value->dump(), Json(values).dump()));
  }
  void problem(std::string_view key, std::string_view what) {
    problems_ += fmt::format("\n  {}: {}", key, what);
  }
  void finish() const {
    if (problems_.empty()) return;
    throw Error(ErrorKind::kConfig,
                fmt::format("{} describes a model that is not available here:{}", name_, problems_),
                "gpt2 and llama without these variants are");
  }

 private:
  std::string name_;
  Json json_;
  std::string problems_;
};

Model gpt2_from(Source& source) {
  Model model;
  model.type = "gpt2";
  model.layers = source.size("n_layer");
  model.hidden = source.size("n_embd");
  model.heads = source.size("n_head");
  model.kv_heads = model.heads;
  model.context = source.size("n_positions");
  model.vocab = source.size("vocab_size");
  model.intermediate = source.size("n_inner", 4 * model.hidden);
  model.norm_eps = source.number("layer_norm_epsilon", 1e-5);
  model.init_std = source.number("initializer_range", 0.02);
  source.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  source.only("scale_attn_weights", {true});
  source.only("scale_attn_by_inverse_layer_idx", {false});
  source.only("add_cross_attention", {false});
  source.only("tie_word_embeddings", {true});
  return model;
}

// transformers 5 keeps the rotary embedding under rope_parameters, 4 beside it.
double rope_theta(Source& source) {
  const double otherwise = source.number("rope_theta", 10000);
  if (source.find("rope_scaling") != nullptr)
    source.problem("rope_scaling", "scaled rotary embeddings are not available");
  const Json* parameters = source.find("rope_parameters");
  if (parameters == nullptr) return otherwise;
  if (parameters->value("rope_type", Json("default")) != "default")
    source.problem("rope_parameters",
                   fmt::format("{} is not available, only rope_type default", parameters->dump()));
  const Json theta = parameters->value("rope_theta", Json(otherwise));
  if (theta.is_number() && theta.get<double>() > 0) return theta.get<double>();
  source.problem("rope_parameters.rope_theta", "it is no positive number");
  return otherwise;
}

Model llama_from(Source& source) {
  Model model;
  model.type = "llama";
  model.layers = source.size("num_hidden_layers");
  model.hidden = source.size("hidden_size");
  model.heads = source.size("num_attention_heads");
  model.kv_heads = source.size("num_key_value_heads", model.heads);
  model.context = source.size("max_position_embeddings");
  model.vocab = source.size("vocab_size");
  model.intermediate = source.size("intermediate_size");
  model.tied_head = source.truth("tie_word_embeddings", false);
  model.norm_eps = source.number("rms_norm_eps", 1e-6);
  model.init_std = source.number("initializer_range", 0.02);
  model.rope_theta = rope_theta(source);
  source.only("hidden_act", {"silu", "swish"});
  source.only("attention_bias", {false});
  source.only("mlp_bias", {false});
  source.only("head_dim", {model.hidden / model.heads});
  return model;
}

}  // namespace

Model model_from_hugging_face(std::string_view text, std::string_view name) {
  Source source(text, name);
  const Json* type = source.find("model_type");
  Model model;
  if (type != nullptr && *type == "gpt2") {
    model = gpt2_from(source);
  } else if (type != nullptr && *type == "llama") {
    model = llama_from(source);
  } else {
    source.problem("model_type",
                   type == nullptr
                       ? "is missing"
                       : fmt::format("{} is not available, only gpt2 and llama", type->dump()));
  }
  source.finish();
  return model;
}

std::string model_to_hugging_face(const Model& model, std::string_view dtype) {
  // transformers 4 and 5 both understand torch_dtype and rope_theta.
  Json json = {{"torch_dtype", dtype},
               {"vocab_size", model.vocab},
               {"initializer_range", model.init_std},
               {"tie_word_embeddings", model.tied_head},
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr},
               {"use_cache", true}};
  if (model.type == "gpt2") {
    json.update({{"architectures", {"GPT2LMHeadModel"}},
                 {"model_type", "gpt2"},
                 {"activation_function", "gelu_new"},
                 {"n_layer", model.layers},
                 {"n_embd", model.hidden},
                 {"n_head", model.heads},
                 {"n_positions", model.context},
                 {"n_inner", model.intermediate},
                 {"layer_norm_epsilon", model.norm_eps},
                 {"attn_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"resid_pdrop", 0.0}});
  } else {
    json.update({{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"hidden_act", "silu"},
                 {"num_hidden_layers", model.layers},
                 {"hidden_size", model.hidden},
                 {"num_attention_heads", model.heads},
                 {"num_key_value_heads", model.kv_heads},
                 {"head_dim", model.hidden / model.heads},
                 {"max_position_embeddings", model.context},
                 {"intermediate_size", model.intermediate},
                 {"rms_norm_eps", model.norm_eps},
                 {"rope_theta", model.rope_theta},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"attention_dropout", 0.0}});
  }
  return json.dump(2) + "\n";
}

}  // namespace trireme::config
