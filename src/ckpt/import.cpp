// From a folder of Hugging Face transformers to a checkpoint with weights only.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/hugging_face.hpp"
#include "trireme/config/load.hpp"

#include "ckpt/copies.hpp"
#include "ckpt/format.hpp"
#include "ckpt/import_texts.hpp"
#include "ckpt/io.hpp"
#include "ckpt/scratch.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostTextBytes = 256 * 1024 * 1024;
constexpr std::int64_t kPiece = 1024 * 1024;  // elements in memory at a time

std::map<std::string, std::string> texts_of(const PretrainedFolder& source) {
  config::Config config;
  config.model = source.model();
  if (config.model.type == "gpt2") config.model.kv_heads = 0;  // a setting of llama alone
  std::map<std::string, std::string> texts{{"config", config::to_yaml(config)}};
  for (const std::string_view name : kKeptTexts) {
    std::error_code ignored;
    const fs::path path = source.path() / name;
    if (fs::exists(path, ignored)) texts[kept_text(name)] = read_text(path, kMostTextBytes);
  }
  const Json all = Json::parse(read_text(source.path() / "config.json", kMostTextBytes));
  Json special = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (all.contains(key)) special[key] = all[key];
  }
  texts[kept_text(kSpecialTokens)] = special.dump();
  return texts;
}

// This rank's part of every parameter, on its way through a scratch file.
class Share {
 public:
  Share(const comm::Communicator& comm, const PretrainedFolder& source, const fs::path& folder)
      : rank_(comm.rank().value), size_(comm.size()), source_(source), scratch_(folder) {}

  void take(const Progress& progress) {
    for (std::size_t i = 0; i < source_.parameters().size(); ++i) all_ += end(i) - begin(i);
    for (std::size_t i = 0; i < source_.parameters().size(); ++i) {
      for (std::int64_t at = begin(i); at < end(i); at += kPiece) {
        const std::int64_t count = std::min(kPiece, end(i) - at);
        piece_.resize(static_cast<std::size_t>(count));
        source_.read(i, at, piece_);
        scratch_.append(std::as_bytes(std::span<const float>(piece_)));
        done_ += count;
        if (progress) progress(bytes(done_), bytes(all_));
      }
    }
  }

  Snapshot snapshot() {
    Snapshot result;
    const std::byte* memory = scratch_.map();
    for (std::size_t i = 0; i < source_.parameters().size(); ++i) {
      const Parameter& parameter = source_.parameters()[i];
      result.tensors.push_back({"/model/" + parameter.name, DType::kFloat32, parameter.shape});
      result.extents.push_back({i, begin(i), end(i) - begin(i), memory});
      memory += bytes(end(i) - begin(i)).value;
    }
    return result;
  }

 private:
  static Bytes bytes(std::int64_t elements) {
    return Bytes(elements * static_cast<std::int64_t>(sizeof(float)));
  }
  std::int64_t elements(std::size_t parameter) const {
    std::int64_t product = 1;
    for (const std::int64_t dim : source_.parameters()[parameter].shape) product *= dim;
    return product;
  }
  // In whole numbers of elements a rank, so that nothing overflows.
  std::int64_t border(std::size_t parameter, std::int64_t rank) const {
    const std::int64_t all = elements(parameter);
    return all / size_ * rank + std::min(rank, all % size_);
  }
  std::int64_t begin(std::size_t parameter) const { return border(parameter, rank_); }
  std::int64_t end(std::size_t parameter) const { return border(parameter, rank_ + 1); }

  std::int64_t rank_;
  std::int64_t size_;
  const PretrainedFolder& source_;
  Scratch scratch_;
  std::vector<float> piece_;
  std::int64_t done_ = 0;
  std::int64_t all_ = 0;
};

}  // namespace

fs::path import_hugging_face(comm::Communicator& comm, const fs::path& from, const fs::path& to,
                             const Progress& progress) {
  const auto [folder, step] = target_of(to, Step(0));
  std::optional<PretrainedFolder> source;
  comm.agree("import open", [&] {
    source.emplace(from);
    std::error_code ignored;
    if (fs::exists(folder / step_folder(step), ignored)) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("{} exists already", (folder / step_folder(step)).string()),
                  "name another checkpoint with --to, or move that one away");
    }
  });
  std::optional<Share> share;
  Snapshot snapshot;
  comm.agree("import read", [&] {
    std::error_code error;
    fs::create_directories(folder, error);
    share.emplace(comm, *source, folder);
    share->take(progress);
    snapshot = share->snapshot();
    snapshot.extra = texts_of(*source);
  });
  return save(comm, snapshot, {folder, step, 0});
}

}  // namespace trireme::ckpt
