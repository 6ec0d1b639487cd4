// The folder of a run's checkpoints: how a new one comes into being in one step, how old ones go,
// and what to do about the remains of jobs that died. Used by one process, the root.
//
//   step-00000012                  a checkpoint (complete when its manifest checks)
//   step-00000012.tmp-<id>         being written; its writer holds a lock on it
//   step-00000012.old-<id>         being replaced, on file systems that cannot exchange two folders
//   at once .trash-<id>-...                being deleted
#pragma once

#include "trireme/base/handle.hpp"
#include "trireme/base/units.hpp"

#include "ckpt/io.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ckpt {

// A checkpoint being written. Unless committed, it is removed in the end.
class Draft {
 public:
  // Makes the folder for checkpoints if need be, clears what dead jobs left there and makes the tmp
  // folder. Throws Environment when another job is writing there, or Io.
  Draft(const Io& io, const std::filesystem::path& folder, Step step);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Writes the manifest, makes everything durable and gives the draft its final name. From the
  // rename on the new checkpoint is the one that counts, whatever this still throws.
  void commit(const std::string& manifest);

 private:
  void write_manifest(const std::string& text) const;
  void replace();

  const Io& io_;
  std::filesystem::path folder_;
  std::string id_;
  std::filesystem::path path_;
  std::filesystem::path final_path_;
  FileDescriptor lock_;
  bool committed_ = false;
};

// Puts back what a job that died while replacing a checkpoint left under another name. Never
// throws: a reader may lack the right to rename.
void recover(const std::filesystem::path& folder) noexcept;

// Removes all but the newest `keep` complete checkpoints, and damaged ones older than those;
// `newest` always stays. Returns what could not be removed. keep 0 keeps all.
std::vector<std::string> prune(const Io& io, const std::filesystem::path& folder, int keep,
                               const std::filesystem::path& newest);

// Removes a checkpoint or what is left of one: renamed first, so that a half-deleted one never
// stands under a checkpoint's name.
void discard(const Io& io, const std::filesystem::path& path);

// Whether `name` is that of something that a job which died left in a folder for checkpoints.
bool is_remains(std::string_view name);

// Takes what a job holds while it writes `path`. Throws Environment when it is held.
FileDescriptor lock_folder(const std::filesystem::path& path);

// Whether the manifest is there and checks.
bool is_complete(const std::filesystem::path& checkpoint);

}  // namespace trireme::ckpt
