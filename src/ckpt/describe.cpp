// What a person or a script asks of a checkpoint without reading its tensors, and which one they
// mean.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/tools.hpp"

#include "ckpt/folder.hpp"
#include "ckpt/format.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Sum {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

// "/optimizer/exp_avg" for a moment, "/model" for a weight.
std::string group_of(const std::string& path) {
  const std::size_t levels = path.starts_with("/optimizer/") ? 2 : 1;
  std::size_t at = 0;
  for (std::size_t level = 0; level < levels; ++level) {
    const std::size_t next = path.find('/', at + 1);
    if (next == path.npos) return at == 0 ? "/" : path.substr(0, at);
    at = next;
  }
  return path.substr(0, at);
}

std::map<std::string, Sum> sums_of(const Reader& reader) {
  std::map<std::string, Sum> sums;
  for (const TensorSpec& spec : reader.tensors()) {
    const auto bytes = static_cast<std::int64_t>(*bytes_of(spec.dtype, spec.shape));
    Sum& sum = sums[group_of(spec.path)];
    ++sum.tensors;
    sum.bytes += bytes;
    sum.elements += bytes / static_cast<std::int64_t>(element_bytes(spec.dtype));
  }
  return sums;
}

std::string as_json(const Reader& reader) {
  Json json = {{"path", reader.path().string()},
               {"format", reader.format()},
               {"step", reader.step().value},
               {"world_size", reader.world_size()},
               {"versions", reader.versions()}};
  for (const auto& [name, sum] : sums_of(reader)) {
    json["groups"].push_back({{"name", name},
                              {"tensors", sum.tensors},
                              {"elements", sum.elements},
                              {"bytes", sum.bytes}});
  }
  json["tensors"] = Json::array();
  for (const TensorSpec& spec : reader.tensors()) {
    json["tensors"].push_back(
        {{"path", spec.path}, {"dtype", name_of(spec.dtype)}, {"shape", spec.shape}});
  }
  json["extra"] = reader.extra();
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string as_table(const Reader& reader) {
  std::string text = fmt::format("{}\nstep {}, format {}, written by {} rank{}",
                                 reader.path().string(), reader.step().value, reader.format(),
                                 reader.world_size(), reader.world_size() == 1 ? "" : "s");
  for (const auto& [name, version] : reader.versions())
    text += fmt::format(", {} {}", name, version);
  text += "\n\n";
  for (const auto& [name, sum] : sums_of(reader)) {
    text += fmt::format("{:<28} {:>6} tensors {:>10} elements {:>10}\n", name, sum.tensors,
                        human_count(sum.elements), human(Bytes(sum.bytes)));
  }
  for (const auto& [name, value] : reader.extra()) {
    text += fmt::format("{:<28} text of {}\n", "/extra/" + name,
                        human(Bytes(static_cast<std::int64_t>(value.size()))));
  }
  std::size_t width = 0;
  for (const TensorSpec& spec : reader.tensors()) width = std::max(width, spec.path.size());
  text += "\n";
  for (const TensorSpec& spec : reader.tensors()) {
    text += fmt::format("{:<{}}  {}  [{}]\n", spec.path, width, name_of(spec.dtype),
                        fmt::join(spec.shape, ", "));
  }
  return text;
}

std::optional<fs::path> newest_complete(const fs::path& folder) {
  for (const fs::path& checkpoint : list(folder)) {
    if (is_complete(checkpoint)) return checkpoint;
  }
  return std::nullopt;
}

}  // namespace

std::string describe(const fs::path& checkpoint, bool json) {
  const Reader reader(checkpoint);
  return json ? as_json(reader) : as_table(reader);
}

fs::path resolve(const fs::path& given) {
  std::error_code ignored;
  if (!fs::exists(given, ignored)) {
    throw Error(ErrorKind::kConfig, fmt::format("{} does not exist", given.string()),
                "give a checkpoint folder, its state.h5, a run folder or its checkpoints folder");
  }
  const std::string name = given.filename().string();
  if (name == kStateFile || (name.starts_with("state-") && name.ends_with(".h5")))
    return given.has_parent_path() ? given.parent_path() : fs::path(".");
  // A damaged checkpoint is still the one that was meant: whoever opens it says what is wrong.
  if (fs::exists(given / kManifestFile, ignored) || fs::exists(given / kStateFile, ignored))
    return given;
  for (const fs::path& folder : {given, given / "checkpoints"}) {
    if (!fs::is_directory(folder, ignored)) continue;
    if (const auto found = newest_complete(folder)) return *found;
  }
  throw Error(
      ErrorKind::kConfig,
      fmt::format("no complete checkpoint in {}: looked for {}, {}, step-* and checkpoints/step-*",
                  given.string(), kManifestFile, kStateFile),
      "a checkpoint is a folder like runs/demo/checkpoints/step-00000200");
}

}  // namespace trireme::ckpt
