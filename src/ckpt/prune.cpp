// Which checkpoints of a folder stay, by rules that a person gives.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/tools.hpp"

#include "ckpt/folder.hpp"
#include "ckpt/format.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Bytes bytes_in(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) bytes += static_cast<std::int64_t>(it->file_size(ignored));
  }
  return Bytes(bytes);
}

// Returns the reason to keep a complete checkpoint, of which `newer` complete ones are newer.
std::string reason(Step step, std::int64_t newer, const KeepRules& rules) {
  if (newer == 0) return "the newest";
  if (newer < rules.last) return fmt::format("--keep-last {}", rules.last);
  if (rules.every > 0 && step.value % rules.every == 0)
    return fmt::format("--keep-every {}", rules.every);
  if (std::find(rules.steps.begin(), rules.steps.end(), step) != rules.steps.end())
    return fmt::format("--keep {}", step.value);
  return {};
}

}  // namespace

std::vector<PruneEntry> plan_pruning(const fs::path& folder, const KeepRules& rules) {
  std::vector<PruneEntry> plan;
  std::int64_t complete = 0;
  for (const fs::path& path : list(folder)) {
    PruneEntry entry{path, true, "", bytes_in(path)};
    if (is_complete(path)) {
      entry.why = reason(*step_of(path.filename().string()), complete++, rules);
    } else {
      entry.why = rules.damaged ? "damaged, and --damaged is not given" : "";
    }
    entry.keep = !entry.why.empty();
    if (!entry.keep) entry.why = "no rule keeps it";
    plan.push_back(std::move(entry));
  }
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!is_remains(name)) continue;
    // Between two renames of a job that died it may be the only one of its step.
    const std::size_t aside = name.find(".old-");
    const bool only = aside != name.npos && !fs::exists(folder / name.substr(0, aside));
    plan.push_back({it->path(), only, only ? "the next save puts it back" : "remains of a dead job",
                    bytes_in(it->path())});
  }
  return plan;
}

void carry_out(const std::vector<PruneEntry>& plan, const FaultHook& hook) {
  // All locks first: nothing is removed while any job is at work there.
  std::vector<FileDescriptor> locks;
  for (const PruneEntry& entry : plan) {
    std::error_code ignored;
    if (!entry.keep && is_remains(entry.path.filename().string()) &&
        fs::is_directory(entry.path, ignored))
      locks.push_back(lock_folder(entry.path));
  }
  const Io io(hook);
  for (const PruneEntry& entry : plan) {
    if (!entry.keep) discard(io, entry.path);
  }
}

std::string to_text(const std::vector<PruneEntry>& plan, bool json) {
  Bytes freed;
  for (const PruneEntry& entry : plan) {
    if (!entry.keep) freed.value += entry.bytes.value;
  }
  if (json) {
    Json entries = Json::array();
    for (const PruneEntry& entry : plan) {
      entries.push_back({{"path", entry.path.string()},
                         {"keep", entry.keep},
                         {"why", entry.why},
                         {"bytes", entry.bytes.value}});
    }
    return Json{{"entries", entries}, {"freed_bytes", freed.value}}.dump(
        2, ' ', false, Json::error_handler_t::replace);
  }
  std::string text;
  for (const PruneEntry& entry : plan) {
    text += fmt::format("{:<6}  {:>10}  {} ({})\n", entry.keep ? "keep" : "remove",
                        human(entry.bytes), entry.path.string(), entry.why);
  }
  return text + fmt::format("{} in all to remove", human(freed));
}

}  // namespace trireme::ckpt
