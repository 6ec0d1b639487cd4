// Weights to and from folders as Hugging Face transformers reads and writes them: config.json,
// safetensors (one file or shards with an index), tokenizer files. gpt2 and llama.
//
// Parameters have transformers' names and layouts in checkpoints too, so weights are copied, never
// turned; a tied head is stored once.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/safetensors.hpp"
#include "trireme/config/config.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ckpt {

// The name of a checkpoint's text (Snapshot::extra) that is the model's tokenizer.json.
inline constexpr std::string_view kStoredTokenizer = "hugging_face/tokenizer.json";

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Returns the parameters of a model whose sizes are all set, in the order of its modules.
std::vector<Parameter> parameters_of(const config::Model& model);

// The weights in such a folder, as the model's parameters whatever the file calls them (older files
// of gpt2 leave out "transformer.").
class PretrainedFolder {
 public:
  // Throws Config when the model is not available here or `folder` is no such folder; Corrupt when
  // weights are missing, surplus or of another shape than config.json says.
  explicit PretrainedFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const { return path_; }
  const config::Model& model() const { return model_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // Fills `to` with elements of a parameter from `begin` on, widened to fp32 (see
  // safetensors::Reader::read): each rank reads its ranges.
  void read(std::size_t parameter, std::int64_t begin, std::span<float> to) const;

 private:
  std::filesystem::path path_;
  config::Model model_;
  std::vector<Parameter> parameters_;
  safetensors::Reader weights_;
  std::vector<std::size_t> tensors_;  // of each parameter
};

struct ExportOptions {
  std::filesystem::path to;                          // made; must not exist or be empty
  safetensors::Type type = safetensors::Type::kF32;  // or kBF16, kF16, which need a
                                                     // kernels::Runtime
  Bytes shard_size{5'000'000'000};  // of the largest file, unless a tensor is larger
  Progress progress = {};
  FaultHook hook = {};  // tests only
};

struct Exported {
  std::filesystem::path folder;
  std::vector<std::filesystem::path> files;
  std::int64_t tensors = 0;
  Bytes bytes;  // of weights
};

// Writes a checkpoint's weights as a folder that transformers loads. Reads and checks block by
// block: the memory does not grow with the model. The folder gets its name when it is complete and
// durable. Throws Config when the checkpoint's model has no counterpart in transformers or fp16
// cannot hold a weight, Corrupt, Io.
Exported export_hugging_face(const std::filesystem::path& checkpoint, const ExportOptions& options);

// @collective. Writes the weights of such a folder as a checkpoint with weights only (no moments,
// no position), each rank a part of every parameter. `to` is a checkpoint's folder (step-NNNNNNNN)
// or a folder for checkpoints, which gets step 0; returns the checkpoint. Throws Config when it
// exists, and as PretrainedFolder does.
std::filesystem::path import_hugging_face(comm::Communicator& comm,
                                          const std::filesystem::path& from,
                                          const std::filesystem::path& to,
                                          const Progress& progress = {});

}  // namespace trireme::ckpt
