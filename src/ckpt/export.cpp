// From a checkpoint to a folder of Hugging Face transformers. Everything is made under another name
// and renamed once it is durable.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/hugging_face.hpp"
#include "trireme/config/hugging_face.hpp"
#include "trireme/config/load.hpp"
#include "trireme/kernels/convert.hpp"

#include "ckpt/byte_tokenizer.hpp"
#include "ckpt/chunks.hpp"
#include "ckpt/import_texts.hpp"
#include "ckpt/io.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;
namespace st = safetensors;
using Json = nlohmann::ordered_json;

constexpr std::string_view kWeights = "/model/";

[[noreturn]] void throw_no_counterpart(const Reader& reader, const std::string& what) {
  throw Error(
      ErrorKind::kConfig,
      fmt::format("{} cannot become a Hugging Face folder: {}", reader.path().string(), what),
      "checkpoints of `trireme train` with model.type gpt2 or llama can");
}

std::string text_of(const Reader& reader, const std::string& name) {
  const auto found = reader.extra().find(name);
  return found == reader.extra().end() ? std::string() : found->second;
}

// Returns dimension `dim` of a weight: the sizes that a configuration may leave open are those of
// the weights.
std::int64_t size_of_weight(const Reader& reader, const std::string& name, std::size_t dim) {
  const auto found = reader.find(std::string(kWeights) + name);
  if (!found || reader.tensors()[*found].shape.size() <= dim)
    throw_no_counterpart(reader, fmt::format("it has no weight {}", name));
  return reader.tensors()[*found].shape[dim];
}

config::Model stored_model(const Reader& reader) {
  const std::string text = text_of(reader, "config");
  if (text.empty()) throw_no_counterpart(reader, "it holds no configuration");
  return config::load_model(text, "extra/config of " + reader.path().string());
}

// Whether the model was trained on bytes; a mere vocabulary has no tokenizer to export.
bool reads_bytes(const Reader& reader) {
  return config::load_data(text_of(reader, "config"), "extra/config of " + reader.path().string())
             .tokenizer == "bytes";
}

config::Model complete(config::Model model, const Reader& reader) {
  if (!model.plugin.empty())
    throw_no_counterpart(reader, fmt::format("its model is of the plug-in {}", model.plugin));
  const bool gpt2 = model.type == "gpt2";
  if (!gpt2 && model.type != "llama")
    throw_no_counterpart(reader, fmt::format("its model is of type {}", model.type));
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  model.vocab =
      size_of_weight(reader, gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", 0);
  model.intermediate = gpt2 ? size_of_weight(reader, "transformer.h.0.mlp.c_fc.weight", 1)
                            : size_of_weight(reader, "model.layers.0.mlp.gate_proj.weight", 0);
  return model;
}

// Returns the dataset of each parameter; the checkpoint must hold exactly these.
std::vector<std::size_t> locate(const Reader& reader, const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> datasets;
  for (const Parameter& parameter : parameters) {
    const auto found = reader.find(std::string(kWeights) + parameter.name);
    if (!found) throw_no_counterpart(reader, fmt::format("it has no weight {}", parameter.name));
    const TensorSpec& spec = reader.tensors()[*found];
    if (spec.dtype != DType::kFloat32 || spec.shape != parameter.shape) {
      throw_no_counterpart(
          reader, fmt::format("{} is [{}] instead of [{}]", parameter.name,
                              fmt::join(spec.shape, ", "), fmt::join(parameter.shape, ", ")));
    }
    datasets.push_back(*found);
  }
  std::size_t weights = 0;
  for (const TensorSpec& spec : reader.tensors()) weights += spec.path.starts_with(kWeights);
  if (weights != parameters.size()) {
    throw_no_counterpart(reader, fmt::format("it has {} weights, the model of its configuration {}",
                                             weights, parameters.size()));
  }
  return datasets;
}

// A folder under another name, until it is renamed; removed if that does not happen.
class DraftFolder {
 public:
  DraftFolder(const Io& io, fs::path final_path) : io_(io), final_(std::move(final_path)) {
    final_ = fs::absolute(final_).lexically_normal();
    if (!final_.has_filename()) final_ = final_.parent_path();
    std::error_code error;
    if (fs::exists(final_, error) && !(fs::is_directory(final_, error) && fs::is_empty(final_))) {
      throw Error(ErrorKind::kConfig, fmt::format("{} exists already", final_.string()),
                  "name another folder with --to, or move that one away");
    }
    fs::create_directories(final_.parent_path(), error);
    std::string pattern =
        (final_.parent_path() / fmt::format(".{}.tmp-XXXXXX", final_.filename().string())).string();
    if (::mkdtemp(pattern.data()) == nullptr) throw_errno("make a folder in", pattern);
    path_ = pattern;
    fs::permissions(path_, fs::status(final_.parent_path()).permissions(), error);
  }
  ~DraftFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(path_, ignored);
  }
  DraftFolder(const DraftFolder&) = delete;
  DraftFolder& operator=(const DraftFolder&) = delete;

  const fs::path& path() const { return path_; }
  const fs::path& final_path() const { return final_; }

  void write_text(const std::string& name, const std::string& text) const {
    const fs::path file_path = path_ / name;
    const FileDescriptor file = io_.open("create", file_path, O_WRONLY | O_CREAT | O_EXCL);
    bool direct = false;
    io_.write("write-text", file.get(), std::as_bytes(std::span(text)), 0, file_path, direct);
    io_.sync("fsync-text", file.get(), file_path);
  }

  // An empty folder of the final name gives way in the same step.
  void commit() {
    io_.sync_folder("fsync-folder", path_);
    io_.rename("commit-folder", path_, final_);
    committed_ = true;
    io_.sync_folder("fsync-parent", final_.parent_path());
  }

 private:
  const Io& io_;
  fs::path final_;
  fs::path path_;
  bool committed_ = false;
};

struct Shard {
  std::string name;
  std::vector<std::size_t> parameters;
};

std::uint64_t stored_bytes(const Parameter& parameter, st::Type type) {
  std::uint64_t bytes = st::element_bytes(type);
  for (const std::int64_t dim : parameter.shape) bytes *= static_cast<std::uint64_t>(dim);
  return bytes;
}

std::vector<Shard> shards_of(const std::vector<Parameter>& parameters,
                             const ExportOptions& options) {
  std::vector<Shard> shards(1);
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::uint64_t bytes = stored_bytes(parameters[i], options.type);
    if (filled > 0 && filled + bytes > static_cast<std::uint64_t>(options.shard_size.value)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().parameters.push_back(i);
    filled += bytes;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

constexpr std::string_view transformers_name(st::Type type) {
  return type == st::Type::kF32 ? "float32" : type == st::Type::kBF16 ? "bfloat16" : "float16";
}

bool is_infinite(kernels::Half half) { return (half & 0x7fffU) == 0x7c00U; }

// The weights in the type of the export.
class Narrowing {
 public:
  explicit Narrowing(st::Type type) : type_(type) {}

  std::span<const std::byte> operator()(std::span<const std::byte> bytes, const std::string& name) {
    if (type_ == st::Type::kF32) return bytes;
    const std::span<const float> in(reinterpret_cast<const float*>(bytes.data()),
                                    bytes.size() / sizeof(float));
    halves_.resize(in.size());
    (type_ == st::Type::kBF16 ? kernels::narrow_bf16 : kernels::narrow_fp16)(in, halves_);
    if (type_ == st::Type::kF16) require_finite(in, name);
    return std::as_bytes(std::span(halves_));
  }

 private:
  void require_finite(std::span<const float> in, const std::string& name) const {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!is_infinite(halves_[i]) || !std::isfinite(in[i])) continue;
      throw Error(
          ErrorKind::kConfig,
          fmt::format("fp16 cannot hold {} of {}: its largest number is 65504", in[i], name),
          "export with --dtype bf16 or f32");
    }
  }

  st::Type type_;
  std::vector<kernels::Half> halves_;
};

class Export {
 public:
  Export(const fs::path& checkpoint, const ExportOptions& options)
      : options_(options),
        io_(options.hook),
        reader_(checkpoint),
        model_(complete(stored_model(reader_), reader_)),
        parameters_(parameters_of(model_)),
        datasets_(locate(reader_, parameters_)),
        shards_(shards_of(parameters_, options)),
        narrow_(options.type) {
    for (const Parameter& parameter : parameters_)
      all_bytes_ += static_cast<std::int64_t>(stored_bytes(parameter, options.type));
  }

  Exported run() {
    DraftFolder draft(io_, options_.to);
    for (const Shard& shard : shards_) write_shard(shard, draft.path() / shard.name);
    if (shards_.size() > 1) draft.write_text("model.safetensors.index.json", index());
    write_texts(draft);
    draft.commit();
    Exported result{
        draft.final_path(), {}, static_cast<std::int64_t>(parameters_.size()), Bytes(all_bytes_)};
    for (const Shard& shard : shards_) result.files.push_back(draft.final_path() / shard.name);
    return result;
  }

 private:
  void write_shard(const Shard& shard, const fs::path& path) {
    std::vector<st::Entry> entries;
    for (const std::size_t i : shard.parameters)
      entries.push_back({parameters_[i].name, options_.type, parameters_[i].shape});
    st::Writer writer(path, entries, {{"format", "pt"}}, options_.hook);
    for (const std::size_t i : shard.parameters) {
      each_chunk(reader_, datasets_[i], buffer_,
                 [&](std::int64_t, std::span<const std::byte> bytes) {
                   const auto narrowed = narrow_(bytes, parameters_[i].name);
                   writer.write(narrowed);
                   done_bytes_ += static_cast<std::int64_t>(narrowed.size());
                   if (options_.progress) options_.progress(Bytes(done_bytes_), Bytes(all_bytes_));
                 });
    }
    writer.finish();
  }

  std::string index() const {
    Json map = Json::object();
    for (const Shard& shard : shards_) {
      for (const std::size_t i : shard.parameters) map[parameters_[i].name] = shard.name;
    }
    return Json{{"metadata", {{"total_size", all_bytes_}}}, {"weight_map", map}}.dump(2) + "\n";
  }

  // The tokenizer is the one that came with imported weights, or the byte tokenizer if that was used.
  void write_texts(const DraftFolder& draft) const {
    Json config =
        Json::parse(config::model_to_hugging_face(model_, transformers_name(options_.type)));
    Json generation = {{"_from_model_config", true}};
    bool came_with_it = false;
    for (const std::string_view name : kKeptTexts) {
      const std::string text = text_of(reader_, kept_text(name));
      if (text.empty()) continue;
      came_with_it = came_with_it || name == kTokenizerFile;
      draft.write_text(std::string(name), text);
    }
    const Json special = Json::parse(text_of(reader_, kept_text(kSpecialTokens)), nullptr, false);
    if (special.is_object()) config.update(special);
    if (special.is_object()) generation.update(special);
    if (!came_with_it && reads_bytes(reader_)) {
      draft.write_text(std::string(kTokenizerFile), byte_tokenizer_json());
      draft.write_text("tokenizer_config.json", byte_tokenizer_config_json(model_.context));
    }
    draft.write_text("config.json", config.dump(2) + "\n");
    if (text_of(reader_, kept_text(kGenerationFile)).empty())
      draft.write_text(std::string(kGenerationFile), generation.dump(2) + "\n");
  }

  const ExportOptions& options_;
  Io io_;
  Reader reader_;
  config::Model model_;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> datasets_;
  std::vector<Shard> shards_;
  Narrowing narrow_;
  std::vector<std::byte> buffer_;
  std::int64_t done_bytes_ = 0;
  std::int64_t all_bytes_ = 0;
};

}  // namespace

Exported export_hugging_face(const fs::path& checkpoint, const ExportOptions& options) {
  ensure(options.type == st::Type::kF32 || options.type == st::Type::kBF16 ||
             options.type == st::Type::kF16,
         "weights are exported as F32, BF16 or F16");
  ensure(options.shard_size.value > 0, "a shard has a size");
  return Export(checkpoint, options).run();
}

}  // namespace trireme::ckpt
