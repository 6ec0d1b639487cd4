#include "ckpt/copies.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/format.hpp"
#include "ckpt/io.hpp"
#include "ckpt/manifest.hpp"
#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 31;

// Returns the manifest's text when it checks.
std::optional<std::string> manifest_text(const fs::path& checkpoint) {
  try {
    const fs::path path = checkpoint / kManifestFile;
    std::string text = read_text(path, kMostManifestBytes);
    parse_manifest(text, path);
    return text;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<fs::path> copies_of(const fs::path& checkpoint, const std::vector<fs::path>& places) {
  const fs::path name = fs::absolute(checkpoint).lexically_normal().filename();
  const auto mine = manifest_text(checkpoint);
  std::vector<fs::path> copies;
  for (const fs::path& place : places) {
    for (const fs::path& candidate : {place, place / name}) {
      const auto text = manifest_text(candidate);
      if (!text) continue;
      const bool same =
          mine ? *text == *mine : step_folder(parse_manifest(*text, candidate).step) == name;
      if (same) copies.push_back(candidate);
    }
  }
  return copies;
}

std::pair<fs::path, Step> target_of(const fs::path& to, Step otherwise) {
  const fs::path path = fs::absolute(to).lexically_normal();
  const fs::path named = path.has_filename() ? path : path.parent_path();
  if (const auto step = step_of(named.filename().string())) return {named.parent_path(), *step};
  return {named, otherwise};
}

std::string json_of(const Damage& damage) {
  const nlohmann::ordered_json json = {{"file", damage.file},   {"dataset", damage.dataset},
                                       {"block", damage.block}, {"offset", damage.offset},
                                       {"bytes", damage.bytes}, {"what", damage.what}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trireme::ckpt
