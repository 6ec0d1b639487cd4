// A run's folder: where things are, and whether a run may start, continue or must be refused there.
#pragma once

#include "trireme/base/handle.hpp"
#include "trireme/config/config.hpp"

#include <filesystem>
#include <string>

namespace trireme::train {

// How `--resume` was given.
struct Resume {
  enum class Mode { kNone, kAuto, kPath };
  Mode mode = Mode::kNone;
  std::filesystem::path path;  // kPath: what the user named

  static Resume parse(const std::string& text);
};

struct RunFolder {
  std::filesystem::path root;

  explicit RunFolder(const config::Run& run);
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path config() const { return root / "config.yaml"; }
  std::filesystem::path log(int rank) const;

  // True when a run was started here before.
  bool holds_run() const;
  // Takes the folder for this job: the returned handle holds it. Throws Config when a live job has
  // it. On file systems that have no locks it holds nothing.
  FileDescriptor lock() const;
  // Makes the folder and checks that it can be written to. Throws Config when a run may not start
  // here under `resume` (saying how to continue or rename), Io when it cannot be written.
  void prepare(const Resume& resume) const;
};

}  // namespace trireme::train
