// What `trireme ckpt` does, as functions; the command prints their results.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::ckpt {

// Returns a 128-bit hex digest of the logical content (tensor names, shapes, types, values and the
// training counters), independent of the layout in the file, of rank count, strategy and
// configuration text. Verifies every block.
std::string content_hash(const std::filesystem::path& checkpoint);

struct Difference {
  std::string path;  // tensor path or "extra/training"
  std::string what;  // "only in A", "shape [2,3] and [3,2]", "17 of 400 elements differ, largest
                     // absolute 1e-7, first at 12"
};
// Returns what differs in logical content; empty when equal to the bit. The configuration text and
// versions are not compared, since they may differ between runs that must agree.
std::vector<Difference> compare(const std::filesystem::path& a, const std::filesystem::path& b);

// Returns a person's table, or with `json` one JSON object, of what the checkpoint holds.
std::string describe(const std::filesystem::path& checkpoint, bool json);

// Accepts a checkpoint folder, its state.h5, a run folder or its checkpoints folder (newest
// complete one) and returns the checkpoint folder; throws Config naming what was looked for.
std::filesystem::path resolve(const std::filesystem::path& given);

}  // namespace trireme::ckpt
