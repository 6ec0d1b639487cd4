// What is wrong with a checkpoint, and which other copy has it right.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/tools.hpp"

#include "ckpt/copies.hpp"
#include "ckpt/format.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<Damage> damages_of(const fs::path& checkpoint, const Progress& progress) {
  std::vector<Damage> damages;
  const DamageSink collect = [&](const Damage& damage) { damages.push_back(damage); };
  try {
    Reader(checkpoint, collect).verify(collect, progress);
  } catch (const Error& error) {
    if (error.kind != ErrorKind::kCorrupt && error.kind != ErrorKind::kIo) throw;
    damages.push_back({checkpoint.string(), "", 0, 0, 0, error.message});
  }
  return damages;
}

bool has_right(const fs::path& copy, const std::vector<Damage>& damages) {
  const std::vector<Damage> of_copy = damages_of(copy, {});
  return std::none_of(damages.begin(), damages.end(), [&](const Damage& damage) {
    return std::any_of(of_copy.begin(), of_copy.end(), [&](const Damage& other) {
      // What has no block concerns the whole file.
      return other.bytes == 0 || damage.bytes == 0 ||
             (other.dataset == damage.dataset && other.block == damage.block);
    });
  });
}

std::optional<fs::path> neighbour_of(const fs::path& checkpoint) {
  const fs::path path = fs::absolute(checkpoint).lexically_normal();
  for (const fs::path& other : list(path.parent_path())) {
    if (other.filename() != path.filename() && damages_of(other, {}).empty()) return other;
  }
  return std::nullopt;
}

}  // namespace

Examination examine(const fs::path& checkpoint, const std::vector<fs::path>& copies,
                    const Progress& progress) {
  Examination result{checkpoint, damages_of(checkpoint, progress), {}, {}};
  if (result.good()) return result;
  for (const fs::path& copy : copies_of(checkpoint, copies)) {
    if (has_right(copy, result.damages)) result.good_copies.push_back(copy);
  }
  result.good_neighbour = neighbour_of(checkpoint);
  return result;
}

std::string to_text(const Examination& e, bool json) {
  if (json) {
    Json damages = Json::array();
    for (const Damage& damage : e.damages) damages.push_back(Json::parse(json_of(damage)));
    Json copies = Json::array();
    for (const fs::path& copy : e.good_copies) copies.push_back(copy.string());
    return Json{{"checkpoint", e.checkpoint.string()},
                {"good", e.good()},
                {"damages", damages},
                {"good_copies", copies},
                {"good_neighbour", e.good_neighbour ? Json(e.good_neighbour->string()) : Json()}}
        .dump(2, ' ', false, Json::error_handler_t::replace);
  }
  if (e.good()) return fmt::format("good: {}", e.checkpoint.string());
  std::string text = fmt::format("damaged: {}", e.checkpoint.string());
  for (const Damage& damage : e.damages) text += "\n  " + damage.what;
  for (const fs::path& copy : e.good_copies)
    text += fmt::format("\nthe same save is right in {}", copy.string());
  text += e.good_neighbour
              ? fmt::format("\nanother checkpoint is good: {}", e.good_neighbour->string())
              : "\nno other checkpoint beside it is good";
  if (!e.good_neighbour || !e.good_copies.empty())
    text += fmt::format("\nwhat is still right can be saved: trireme ckpt salvage {} --to FOLDER",
                        e.checkpoint.string());
  return text;
}

}  // namespace trireme::ckpt
