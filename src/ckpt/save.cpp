// The order of a save. Every stage ends in an agreement, so that a rank that fails leaves no other
// waiting; whatever fails before the commit leaves the folder as it was.
#include "trireme/base/deadline.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/kernels/checksum.hpp"

#include "ckpt/file_writer.hpp"
#include "ckpt/folder.hpp"
#include "ckpt/format.hpp"
#include "ckpt/hdf5.hpp"
#include "ckpt/io.hpp"
#include "ckpt/manifest.hpp"
#include "ckpt/node_file.hpp"
#include "ckpt/plan.hpp"
#include "ckpt/sealed.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;

std::uint32_t digest(const std::vector<TensorSpec>& tensors, Step step) {
  std::string text = step_folder(step);
  for (const TensorSpec& spec : tensors) {
    text += fmt::format("{}\n{}", spec.path, name_of(spec.dtype));
    for (const std::int64_t dim : spec.shape) text += fmt::format(" {}", dim);
  }
  return kernels::crc32c(std::as_bytes(std::span(text)));
}

// Of the texts: 0 for none, as on ranks that leave them to root.
std::uint32_t digest(const std::map<std::string, std::string>& texts) {
  std::string all;
  for (const auto& [name, text] : texts) all += fmt::format("{}\n{}\n{}", name, text.size(), text);
  return texts.empty() ? 0 : kernels::crc32c(std::as_bytes(std::span(all)));
}

void check_texts(const std::map<std::string, std::string>& texts) {
  for (const auto& [name, text] : texts) {
    const std::string problem = problem_with_path("/extra/" + name);
    ensure(problem.empty(), fmt::format("text name '{}': {}", name, problem));
  }
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

// One save, from begin to commit.
class Save {
 public:
  Save(comm::Communicator& comm, const Snapshot& snapshot, const SaveOptions& options, const Io& io)
      : comm_(comm), snapshot_(snapshot), options_(options), io_(io) {}

  SaveResult run(std::optional<StagingRing>& ring) {
    const Clock::time_point start = Clock::now();
    check();
    begin();
    write(ring);
    commit();
    SaveResult result{options_.folder / step_folder(options_.step),
                      Bytes(static_cast<std::int64_t>(bytes_)), seconds_since(start),
                      std::move(notes_)};
    if (comm_.is_root()) {
      for (std::string& problem : prune(io_, options_.folder, options_.keep, result.path)) {
        result.notes.push_back(std::move(problem));
      }
    }
    return result;
  }

 private:
  void check() {
    comm_.agree("checkpoint check", [&] {
      ensure(options_.step.value >= 0 && options_.keep >= 0, "step and keep are not negative");
      check_specs(snapshot_.tensors);
      check_texts(snapshot_.extra);
      check_extents(snapshot_.tensors, snapshot_.extents);
    });
    const std::array<std::uint32_t, 2> mine{digest(snapshot_.tensors, options_.step),
                                            digest(snapshot_.extra)};
    const auto all = comm::all_gather_values(comm_, mine, "checkpoint begin");
    comm_.agree("checkpoint begin", [&] {
      for (std::size_t rank = 1; rank < all.size(); ++rank) {
        ensure(all[rank][0] == all[0][0],
               fmt::format("ranks 0 and {} list the same tensors and step", rank));
        // Only root's are stored, and state that a rank alone has would be lost.
        ensure(all[rank][1] == all[0][1] || all[rank][1] == 0,
               fmt::format("ranks 0 and {} give the same texts", rank));
      }
    });
  }

  void begin() {
    comm::ByteVector message;
    comm_.agree("checkpoint create", [&] {
      if (!comm_.is_root()) return;
      draft_.emplace(io_, options_.folder, options_.step);
      const std::string name = draft_->path().string();
      message = sealed(std::as_bytes(std::span(name)));
    });
    message = comm_.broadcast(std::move(message), "checkpoint folder");
    const auto name = unsealed(message);
    folder_ = std::string(reinterpret_cast<const char*>(name.data()), name.size());
  }

  void write(std::optional<StagingRing>& ring) {
    if (options_.files == Files::kNode) return write_node_files(ring);
    FileWritten written =
        write_file(io_, ring, comm_, folder_ / kStateFile,
                   {snapshot_.tensors, snapshot_.extents, snapshot_.extra}, options_);
    notes_ = std::move(written.notes);
    manifest_.files.push_back(std::move(written.file));
    manifest_.parts = whole_parts(snapshot_.tensors);
  }

  // Each node writes by itself; what comes of it is agreed upon by all.
  void write_node_files(std::optional<StagingRing>& ring) {
    comm::Communicator node =
        comm_.split(options_.node, static_cast<int>(comm_.rank().value), "checkpoint node");
    std::string mine;
    comm_.agree("checkpoint node file", [&] {
      try {
        mine = write_node_file(ring, node);
      } catch (Error& error) {
        if (error.rank >= 0) error.rank += first_of_node_;
        throw;
      }
    });
    const auto files = comm_.all_gather(std::as_bytes(std::span(mine)), "checkpoint node files");
    comm_.agree("checkpoint node files", [&] {
      if (!comm_.is_root()) return;
      manifest_.version = kNodeFormatVersion;
      manifest_.tensors = snapshot_.tensors;
      for (const comm::ByteVector& file : files) {
        const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
        if (!text.empty()) add_file(text, manifest_);
      }
      check_parts(manifest_, folder_ / kManifestFile);
    });
  }

  // Returns what its root has to say of the file; nothing on other ranks.
  std::string write_node_file(std::optional<StagingRing>& ring, comm::Communicator& node) {
    const auto first = node.broadcast(rank_bytes(), "checkpoint node");
    std::memcpy(&first_of_node_, first.data(), sizeof(first_of_node_));
    const bool is_first = first_of_node_ == 0;  // which has the texts
    const NodeContent content = node_content(node, snapshot_.tensors, snapshot_.extents, is_first);
    FileWritten written =
        write_file(io_, ring, node, folder_ / node_file_name(options_.node),
                   {content.tensors, content.extents,
                    is_first ? snapshot_.extra : std::map<std::string, std::string>()},
                   options_);
    notes_ = std::move(written.notes);
    return node.is_root() ? file_to_json(written.file, content.parts) : std::string();
  }

  comm::ByteVector rank_bytes() const {
    const auto rank = static_cast<int>(comm_.rank().value);
    const auto bytes = std::as_bytes(std::span(&rank, 1));
    return {bytes.begin(), bytes.end()};
  }

  void commit() {
    comm_.agree("checkpoint commit", [&] {
      if (!comm_.is_root()) return;
      manifest_.step = options_.step;
      manifest_.world_size = comm_.size();
      manifest_.versions = {{"trireme", std::string(build::kVersion)}, {"hdf5", hdf5_version()}};
      manifest_.tensors = snapshot_.tensors;
      draft_->commit(to_json(manifest_));
      for (const StateFile& file : manifest_.files) bytes_ += file.layout.file_bytes;
    });
    const auto bytes = std::as_bytes(std::span(&bytes_, 1));
    const auto root = comm_.broadcast({bytes.begin(), bytes.end()}, "checkpoint size");
    std::memcpy(&bytes_, root.data(), sizeof(bytes_));
  }

  comm::Communicator& comm_;
  const Snapshot& snapshot_;
  const SaveOptions& options_;
  const Io& io_;
  std::optional<Draft> draft_;  // root's
  fs::path folder_;             // being written
  Manifest manifest_;           // root's
  std::uint64_t bytes_ = 0;     // root's
  int first_of_node_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace

struct Saver::Impl {
  Io io;
  std::optional<StagingRing> ring;  // made by the first save, within its agreement
};

Saver::Saver(FaultHook hook) : impl_(new Impl{Io(std::move(hook)), std::nullopt}) {}
Saver::~Saver() = default;
Saver::Saver(Saver&&) noexcept = default;
Saver& Saver::operator=(Saver&&) noexcept = default;

SaveResult Saver::save(comm::Communicator& comm, const Snapshot& snapshot,
                       const SaveOptions& options) {
  return Save(comm, snapshot, options, impl_->io).run(impl_->ring);
}

fs::path save(comm::Communicator& comm, const Snapshot& snapshot, const SaveOptions& options) {
  return Saver().save(comm, snapshot, options).path;
}

}  // namespace trireme::ckpt
