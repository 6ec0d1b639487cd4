// A checkpoint as the rest of the program sees it: named logical tensors, written and read through lists of extents, so
// that neither the file nor its reader knows how many ranks or which strategy wrote it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/units.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::ckpt {

enum class DType { kFloat32, kFloat64, kInt64, kUInt8 };

// One dataset of state.h5, e.g. path "/model/h.0.attn.weight" or "/optimizer/exp_avg/h.0.attn.weight". The list of
// specs is the same on every rank.
struct TensorSpec {
  std::string path;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

// `count` consecutive elements of a tensor in row-major order from element `begin`, and where they are in memory.
template <class Pointer>
struct BasicExtent {
  std::size_t tensor = 0;  // index into the list of specs
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Pointer data = nullptr;
};
using ConstExtent = BasicExtent<const void*>;
using Extent = BasicExtent<void*>;

struct Snapshot {
  std::vector<TensorSpec> tensors;    // the same on every rank
  std::vector<ConstExtent> extents;   // this rank's; over all ranks they tile every tensor exactly once
  std::map<std::string, std::string> extra;  // small texts (JSON, YAML), root's are stored: "training", "config", ...
};

struct SaveOptions {
  std::filesystem::path folder;  // <run>/checkpoints
  Step step;
  int keep = 3;                  // complete checkpoints to keep, the newest never removed; 0 keeps all
};

// @collective. Writes <folder>/step-NNNNNNNN/{state.h5, manifest.json} durably (tmp folder, fsync, manifest last, rename,
// fsync of the folder), then removes the oldest beyond `keep`. Returns the final path. Any rank's failure is thrown on
// all, and leaves earlier checkpoints untouched.
std::filesystem::path save(comm::Communicator& comm, const Snapshot& snapshot, const SaveOptions& options);

// Returns the folders named step-NNNNNNNN under `folder`, newest first, complete or not.
std::vector<std::filesystem::path> list(const std::filesystem::path& folder);

// A checkpoint open for reading. Opening checks the manifest (its own CRC, format version, file sizes).
class Reader {
 public:
  // Throws Corrupt naming the file, or Io.
  explicit Reader(std::filesystem::path checkpoint);
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  Step step() const;
  const std::filesystem::path& path() const;
  const std::vector<TensorSpec>& tensors() const;
  const std::map<std::string, std::string>& extra() const;
  std::optional<std::size_t> find(std::string_view tensor_path) const;

  // Fills the extents (indices into tensors()), checking the CRC of every block touched; throws Corrupt naming file,
  // dataset and block. Not collective: each rank reads what it needs.
  void read(std::span<const Extent> extents) const;

  // Reads and checks every block of every tensor; throws Corrupt at the first damaged one.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// @collective. Opens the newest checkpoint under `folder` for which `load` succeeds on every rank. A damaged one is
// reported through `warn` (root only; the text names dataset, block and rank) and the one before is tried. Returns
// nothing when the folder holds no checkpoint; throws Corrupt when it holds some and none is good.
std::optional<Step> load_newest(comm::Communicator& comm, const std::filesystem::path& folder,
                                const std::function<void(const Reader&)>& load,
                                const std::function<void(const std::string&)>& warn);

}  // namespace trireme::ckpt
