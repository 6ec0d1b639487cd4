// Files of Accelerate, DeepSpeed and TrainingArguments as settings of a run. What foreign.hpp says
// that a file means becomes native settings, each with the place of its key; what would change
// results and has no counterpart is refused; what merely has no effect is named. Settings that the
// user gives natively win; two foreign files that contradict each other are refused.
#pragma once

#include "trireme/config/foreign.hpp"
#include "trireme/config/load.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::config {

struct ForeignFile {
  ForeignKind kind = ForeignKind::kAccelerate;
  std::filesystem::path file;
};

// A native setting that foreign files give.
struct Setting {
  std::string path;       // "optimizer.lr"
  std::string value;      // as YAML
  std::string source;     // "ds.json:12 (gradient_clipping)", or whose default it is
  bool standard = false;  // a default of the program that the file is for
};

struct Adapted {
  std::vector<Setting> settings;
  std::vector<ForeignFinding> findings;  // errors too
  std::optional<std::int64_t> num_processes;
  std::int64_t num_machines = 1;
  std::string host_file;  // empty: none
};

// Returns the settings of all files together. `native` is what the user set otherwise; it fills
// "auto". `world_size` is the number of ranks, where it is known.
Adapted adapt(const std::vector<ForeignFile>& files, const Loaded& native,
              std::optional<std::int64_t> world_size);

struct LoadedForeign {
  Loaded loaded;
  Adapted adapted;
};

// load() with foreign files below the native ones. Throws one Config error that lists every problem
// of all files. With `partial` the configuration need not be complete (no data, no model).
LoadedForeign load(const std::vector<std::filesystem::path>& files,
                   const std::vector<std::string>& assignments,
                   const std::vector<ForeignFile>& foreign, std::optional<std::int64_t> world_size,
                   bool partial = false);

// Returns the kind of a file by its content, or throws Config.
ForeignKind kind_of_file(const std::filesystem::path& file);

}  // namespace trireme::config
