#include "trireme/ckpt/hugging_face.hpp"

#include "trireme/base/error.hpp"
#include "trireme/config/hugging_face.hpp"

#include "ckpt/io.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostConfigBytes = 1024 * 1024;

std::vector<Parameter> gpt2_parameters(const config::Model& m) {
  std::vector<Parameter> list{{"transformer.wte.weight", {m.vocab, m.hidden}},
                              {"transformer.wpe.weight", {m.context, m.hidden}}};
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string block = fmt::format("transformer.h.{}.", i);
    const std::vector<Parameter> parts{{"ln_1.weight", {m.hidden}},
                                       {"ln_1.bias", {m.hidden}},
                                       {"attn.c_attn.weight", {m.hidden, 3 * m.hidden}},
                                       {"attn.c_attn.bias", {3 * m.hidden}},
                                       {"attn.c_proj.weight", {m.hidden, m.hidden}},
                                       {"attn.c_proj.bias", {m.hidden}},
                                       {"ln_2.weight", {m.hidden}},
                                       {"ln_2.bias", {m.hidden}},
                                       {"mlp.c_fc.weight", {m.hidden, m.intermediate}},
                                       {"mlp.c_fc.bias", {m.intermediate}},
                                       {"mlp.c_proj.weight", {m.intermediate, m.hidden}},
                                       {"mlp.c_proj.bias", {m.hidden}}};
    for (const Parameter& part : parts) list.push_back({block + part.name, part.shape});
  }
  list.push_back({"transformer.ln_f.weight", {m.hidden}});
  list.push_back({"transformer.ln_f.bias", {m.hidden}});
  return list;
}

std::vector<Parameter> llama_parameters(const config::Model& m) {
  const std::int64_t kv_width = m.hidden / m.heads * m.kv_heads;
  std::vector<Parameter> list{{"model.embed_tokens.weight", {m.vocab, m.hidden}}};
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    const std::vector<Parameter> parts{{"self_attn.q_proj.weight", {m.hidden, m.hidden}},
                                       {"self_attn.k_proj.weight", {kv_width, m.hidden}},
                                       {"self_attn.v_proj.weight", {kv_width, m.hidden}},
                                       {"self_attn.o_proj.weight", {m.hidden, m.hidden}},
                                       {"mlp.gate_proj.weight", {m.intermediate, m.hidden}},
                                       {"mlp.up_proj.weight", {m.intermediate, m.hidden}},
                                       {"mlp.down_proj.weight", {m.hidden, m.intermediate}},
                                       {"input_layernorm.weight", {m.hidden}},
                                       {"post_attention_layernorm.weight", {m.hidden}}};
    for (const Parameter& part : parts) list.push_back({layer + part.name, part.shape});
  }
  list.push_back({"model.norm.weight", {m.hidden}});
  if (!m.tied_head) list.push_back({"lm_head.weight", {m.vocab, m.hidden}});
  return list;
}

// Masks and tables that older versions of transformers saved beside the weights.
bool is_no_weight(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

config::Model model_in(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw Error(ErrorKind::kConfig, fmt::format("there is no {}", path.string()),
                "give a folder as save_pretrained writes it");
  }
  return config::model_from_hugging_face(read_text(path, kMostConfigBytes), path.string());
}

std::optional<std::size_t> find_weight(const safetensors::Reader& weights,
                                       const std::string& name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (const auto found = weights.find(name)) return found;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return weights.find(std::string_view(name).substr(kPrefix.size()));
}

[[noreturn]] void throw_unlike(const fs::path& folder, const std::string& what) {
  throw Error(
      ErrorKind::kCorrupt,
      fmt::format("{}: the weights are not those of its config.json: {}", folder.string(), what),
      "take config.json and the safetensors files from one and the same model");
}

}  // namespace

std::vector<Parameter> parameters_of(const config::Model& model) {
  return model.type == "gpt2" ? gpt2_parameters(model) : llama_parameters(model);
}

PretrainedFolder::PretrainedFolder(fs::path folder)
    : path_(std::move(folder)),
      model_(model_in(path_)),
      parameters_(parameters_of(model_)),
      weights_(path_) {
  std::set<std::size_t> used;
  for (const Parameter& parameter : parameters_) {
    const auto tensor = find_weight(weights_, parameter.name);
    if (!tensor) throw_unlike(path_, fmt::format("there is no {}", parameter.name));
    const auto& shape = weights_.tensors()[*tensor].shape;
    if (shape != parameter.shape) {
      throw_unlike(path_, fmt::format("{} is [{}] instead of [{}]", parameter.name,
                                      fmt::join(shape, ", "), fmt::join(parameter.shape, ", ")));
    }
    tensors_.push_back(*tensor);
    used.insert(*tensor);
  }
  for (std::size_t i = 0; i < weights_.tensors().size(); ++i) {
    const std::string& name = weights_.tensors()[i].name;
    const bool second_name = model_.tied_head && name == "lm_head.weight";
    if (!used.contains(i) && !second_name && !is_no_weight(name))
      throw_unlike(path_, fmt::format("{} has no place in the model", name));
  }
}

void PretrainedFolder::read(std::size_t parameter, std::int64_t begin, std::span<float> to) const {
  ensure(parameter < tensors_.size(), "a parameter of the list is read");
  weights_.read(tensors_[parameter], begin, to);
}

}  // namespace trireme::ckpt
