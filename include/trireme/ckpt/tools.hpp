// What `trireme ckpt` does, as functions; the command prints their results.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::ckpt {

// Returns a 128-bit hex digest of the logical content (tensor names, shapes, types, values and the
// training counters), independent of the layout in the file, of rank count, strategy and
// configuration text. Verifies every block.
std::string content_hash(const std::filesystem::path& checkpoint, const Progress& progress = {});

struct Difference {
  std::string path;  // tensor path or "extra/training"
  std::string what;  // "only in A", "shape [2,3] and [3,2]", "17 of 400 elements differ, largest
                     // absolute 1e-7, first at 12"
};
// Returns what differs in logical content; empty when equal to the bit. The configuration text and
// versions are not compared, since they may differ between runs that must agree.
std::vector<Difference> compare(const std::filesystem::path& a, const std::filesystem::path& b,
                                const Progress& progress = {});

// Returns a person's table, or with `json` one JSON object, of what the checkpoint holds.
std::string describe(const std::filesystem::path& checkpoint, bool json);

// What is wrong with a checkpoint, and where the same is right.
struct Examination {
  std::filesystem::path checkpoint;
  std::vector<Damage> damages;
  // Of the other copies of the same save that were named: those that have every damaged block
  // right.
  std::vector<std::filesystem::path> good_copies;
  // The newest other checkpoint beside it in which nothing is wrong; looked for only if need be.
  std::optional<std::filesystem::path> good_neighbour;

  bool good() const { return damages.empty(); }
};
// Reads and checks every byte. `copies` are checkpoints, or folders for checkpoints, that may hold
// the same save: a node-local stage, a partner's copy.
Examination examine(const std::filesystem::path& checkpoint,
                    const std::vector<std::filesystem::path>& copies = {},
                    const Progress& progress = {});
// Returns the findings as lines for a person, or with `json` as one JSON object.
std::string to_text(const Examination& examination, bool json);

struct Salvaged {
  std::filesystem::path checkpoint;
  std::vector<std::string> kept;    // datasets and "extra/<name>"
  std::vector<std::string> mended;  // those of them that took blocks from a copy
  std::vector<Damage> lost;         // a damage for each dataset or text that is not in the result
};
// @collective. Writes a new checkpoint of everything in `source` that is still right, tensor by
// tensor, with blocks from `copies` where those are right. `to` is a checkpoint's folder
// (step-NNNNNNNN) or a folder for checkpoints. Throws Corrupt when the manifest of neither source
// nor copy checks, or nothing is left.
Salvaged salvage(comm::Communicator& comm, const std::filesystem::path& source,
                 const std::vector<std::filesystem::path>& copies, const std::filesystem::path& to,
                 const Progress& progress = {});
std::string to_text(const Salvaged& salvaged, bool json);

// Which checkpoints to keep: any that one of the rules names. The newest complete one stays
// always.
struct KeepRules {
  std::int64_t last = 0;    // the newest so many complete ones
  std::int64_t every = 0;   // those whose step is a multiple of it; 0: none
  std::vector<Step> steps;  // and these
  bool damaged = true;      // those without a manifest that checks
};
struct PruneEntry {
  std::filesystem::path path;
  bool keep = true;
  std::string why;  // "the newest", "--keep-last 3", "no rule keeps it", "remains of a dead job"
  Bytes bytes;
};
// Returns what the rules say of every checkpoint under `folder`, newest first, and of what dead
// jobs left. Changes nothing.
std::vector<PruneEntry> plan_pruning(const std::filesystem::path& folder, const KeepRules& rules);
// Removes what the plan does not keep, each renamed first so that none is ever seen half there.
// Throws Environment when a job is saving there, Io.
void carry_out(const std::vector<PruneEntry>& plan, const FaultHook& hook = {});
std::string to_text(const std::vector<PruneEntry>& plan, bool json);

// Accepts a checkpoint folder, its state.h5, a run folder or its checkpoints folder (newest
// complete one) and returns the checkpoint folder; throws Config naming what was looked for.
std::filesystem::path resolve(const std::filesystem::path& given);

}  // namespace trireme::ckpt
