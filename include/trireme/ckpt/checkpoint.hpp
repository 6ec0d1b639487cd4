// A checkpoint as the rest of the program sees it: named logical tensors, written and read through
// lists of extents, so that neither the file nor its reader knows how many ranks or which strategy
// wrote it.
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/comm/communicator.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ckpt {

enum class DType { kFloat32, kFloat64, kInt64, kUInt8, kBFloat16 };

// One dataset of state.h5, e.g. path "/model/h.0.attn.weight" or
// "/optimizer/exp_avg/h.0.attn.weight". The list of specs is the same on every rank.
struct TensorSpec {
  std::string path;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

// `count` consecutive elements of a tensor in row-major order from element `begin`, and where they
// are in memory. Where memory does not hold them, `data` is null and `move` takes its place: it
// fills the given bytes, or takes them, from byte `offset` of the extent on, in the thread that
// saves or reads, once for every byte.
template <class Pointer, class Bytes>
struct BasicExtent {
  std::size_t tensor = 0;  // index into the list of specs
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Pointer data = nullptr;
  std::function<void(std::uint64_t offset, Bytes bytes)> move = {};
};
using ConstExtent = BasicExtent<const void*, std::span<std::byte>>;
using Extent = BasicExtent<void*, std::span<const std::byte>>;

struct Snapshot {
  std::vector<TensorSpec> tensors;  // the same on every rank
  std::vector<ConstExtent>
      extents;  // this rank's; over all ranks they tile every tensor exactly once
  std::map<std::string, std::string>
      extra;  // small texts (JSON, YAML): "training", "config", ...; root's are stored, and other
              // ranks give the same or none
              // "training" holds what decides how training goes on, and nothing else
};

// Who puts the bytes into state.h5: each rank by itself past the page cache, or all of them through
// parallel HDF5. The file is the same.
enum class Driver { kDirect, kMpiio };

// Whether parallel HDF5 is called by each rank when it has something, or by all ranks together.
enum class Transfer { kIndependent, kCollective };

struct MpiioOptions {
  Transfer transfer = Transfer::kIndependent;
  // HDF5 1.10 and some MPIs fail from 2 GiB on. Calls are no larger than the staging memory anyway
  // (12 MiB); tests make them smaller.
  Bytes most_per_call{1 << 30};
};

enum class Files { kSingle, kNode };

struct SaveOptions {
  std::filesystem::path folder;  // <run>/checkpoints
  Step step;
  int keep = 3;  // complete checkpoints to keep, the newest never removed; 0 keeps all
  Driver driver = Driver::kDirect;
  MpiioOptions mpiio = {};
  // One state.h5, or state-NNNN.h5 for each node with what its ranks hold. Readers see no difference.
  Files files = Files::kSingle;
  int node = 0;  // this rank's, for the latter; ranks are numbered node by node
};

// Tests only. Called before (`done` false) and after each system call of a save with its name:
// "make-folder", "create", "allocate", "open", "write", "fsync", "write-manifest",
// "fsync-manifest", "rename-manifest", "fsync-folder", "commit" or "exchange", "set-aside",
// "fsync-parent", "discard". Returns
// 0 to go on, an errno that the call shall fail with, or kShortWrite to write less than asked. It
// may be called from the saver's own thread.
using FaultHook = std::function<int(std::string_view call, bool done)>;
inline constexpr int kShortWrite = -1;

struct SaveResult {
  std::filesystem::path path;
  Bytes bytes;                     // of state.h5
  double seconds = 0;              // until it was durable
  std::vector<std::string> notes;  // what this rank's file system could not do ("no O_DIRECT:
                                   // ..."), and what stayed behind
};

// Writes checkpoints; owns the staging memory, so that all saves of a run reuse it.
class Saver {
 public:
  explicit Saver(FaultHook hook = {});
  ~Saver();
  Saver(Saver&&) noexcept;
  Saver& operator=(Saver&&) noexcept;

  // @collective. Writes <folder>/step-NNNNNNNN/{state.h5, manifest.json} durably (tmp folder,
  // fsync, manifest last, rename, fsync of the folder), then removes the oldest beyond `keep`. A
  // checkpoint of the same step is replaced in one atomic step. Any rank's failure is thrown on
  // all, and leaves earlier checkpoints untouched. The folder has one writing job: what dead ones
  // left is removed, a live one is refused (Environment).
  SaveResult save(comm::Communicator& comm, const Snapshot& snapshot, const SaveOptions& options);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// @collective. One save by a Saver of its own. Returns the final path.
std::filesystem::path save(comm::Communicator& comm, const Snapshot& snapshot,
                           const SaveOptions& options);

// Returns the folders named step-NNNNNNNN (more digits for more steps) under `folder`, newest
// first, complete or not.
std::vector<std::filesystem::path> list(const std::filesystem::path& folder);

// One place of a checkpoint that is not as it was written.
struct Damage {
  std::string file;
  std::string dataset;       // empty: what HDF5 keeps about the file, or the file as a whole
  std::uint64_t block = 0;   // of the dataset, or of HDF5's part
  std::uint64_t offset = 0;  // of the block in the file
  std::uint64_t bytes = 0;   // of the block; 0 when there is no block to speak of
  std::string what;          // the sentence for a person, with all of this
};
using DamageSink = std::function<void(const Damage&)>;

// Told now and then how many of all bytes are done.
using Progress = std::function<void(Bytes done, Bytes all)>;

// Whether to read past the page cache, fastest for bytes that nobody else on the node wants, or
// through it, so that ranks that want the same bytes cause one read of the disk.
enum class PageCache { kPast, kThrough };

// A checkpoint open for reading. Opening checks the manifest (its own CRC, format version, file
// sizes).
class Reader {
 public:
  // Throws Corrupt naming the file, or Io.
  explicit Reader(std::filesystem::path checkpoint);
  // Opens a checkpoint whose manifest checks, whatever is wrong with its file, and tells that to
  // `found`; texts that cannot be trusted are left out. For tools that save what can be saved.
  Reader(std::filesystem::path checkpoint, const DamageSink& found);
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  Step step() const;
  int format() const;      // 1: one file; 2: a file for each node of the job that wrote it
  int world_size() const;  // of the job that wrote it
  const std::map<std::string, std::string>& versions()
      const;  // of what wrote it, e.g. "hdf5": "1.10.8"
  const std::filesystem::path& path() const;
  const std::vector<TensorSpec>& tensors() const;
  const std::map<std::string, std::string>& extra() const;
  std::vector<std::string> text_names() const;  // of extra(), those that are damaged included
  std::optional<std::size_t> find(std::string_view tensor_path) const;

  // Fills the extents (indices into tensors()), checking the CRC of every block touched; throws
  // Corrupt naming file, dataset and block. Not collective: each rank reads what it needs. After an
  // exception the memory of the extents holds anything. One thread at a time.
  void read(std::span<const Extent> extents, PageCache cache = PageCache::kPast) const;

  // Reads and checks every block of every tensor; throws Corrupt at the first damaged one.
  void verify() const;
  // Reads every block, tells every damage to `found` and goes on; unreadable ones are damage too.
  void verify(const DamageSink& found, const Progress& progress = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// @collective. Opens the newest checkpoint under `folder` for which `load` succeeds on every rank.
// A damaged one is reported through `warn` (root only; the text names dataset, block and rank) and
// the one before is tried. Returns nothing when the folder holds no checkpoint; throws Corrupt when
// it holds some and none is good.
std::optional<Step> load_newest(comm::Communicator& comm, const std::filesystem::path& folder,
                                const std::function<void(const Reader&)>& load,
                                const std::function<void(const std::string&)>& warn);

}  // namespace trireme::ckpt
