// The order of a save. Every stage ends in an agreement, so that a rank that fails leaves no other
// waiting; whatever fails before the commit leaves the folder as it was.
#include "trireme/base/deadline.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/kernels/checksum.hpp"

#include "ckpt/crc_table.hpp"
#include "ckpt/direct_writer.hpp"
#include "ckpt/folder.hpp"
#include "ckpt/format.hpp"
#include "ckpt/hdf5.hpp"
#include "ckpt/io.hpp"
#include "ckpt/manifest.hpp"
#include "ckpt/mpiio_writer.hpp"
#include "ckpt/plan.hpp"
#include "ckpt/state_file.hpp"
#include <fcntl.h>
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

std::vector<std::uint32_t> head_crcs(const fs::path& path, std::uint64_t head_bytes) {
  const FileDescriptor file = open_to_read(path);
  std::vector<std::byte> head(head_bytes);
  read_exactly(file.get(), head, 0, path);
  std::vector<std::uint32_t> crcs;
  for (std::uint64_t at = 0; at < head_bytes; at += kCrcBlock) {
    crcs.push_back(
        kernels::crc32c(std::span(head).subspan(at, std::min(kCrcBlock, head_bytes - at))));
  }
  return crcs;
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

// What root tells the others: where to write.
comm::ByteVector pack(const fs::path& path, const Layout& layout) {
  const std::string name = path.string();
  std::vector<std::uint64_t> numbers{layout.file_bytes, layout.head_bytes, name.size()};
  numbers.insert(numbers.end(), layout.offsets.begin(), layout.offsets.end());
  const auto bytes = std::as_bytes(std::span(numbers));
  comm::ByteVector message(bytes.begin(), bytes.end());
  const auto text = std::as_bytes(std::span(name));
  message.insert(message.end(), text.begin(), text.end());
  const std::uint32_t crc = kernels::crc32c(message);
  const auto check = std::as_bytes(std::span(&crc, 1));
  message.insert(message.end(), check.begin(), check.end());
  return message;
}

// Its checksum tells a message that came from one that is still to come or was torn: ranks that
// wrote to places that root did not give would damage each other's bytes.
std::pair<fs::path, Layout> unpack(std::span<const std::byte> message, std::size_t num_tensors) {
  std::uint32_t crc = 0;
  ensure(message.size() > sizeof(crc), "root's plan is complete");
  std::memcpy(&crc, message.data() + message.size() - sizeof(crc), sizeof(crc));
  message = message.first(message.size() - sizeof(crc));
  ensure(kernels::crc32c(message) == crc, "root's plan arrives as it was sent");
  std::vector<std::uint64_t> numbers(3 + num_tensors);
  const std::size_t bytes = numbers.size() * sizeof(std::uint64_t);
  ensure(message.size() >= bytes, "root's plan is complete");
  std::memcpy(numbers.data(), message.data(), bytes);
  ensure(message.size() == bytes + numbers[2], "root's plan is complete");
  std::string name(numbers[2], '\0');
  std::memcpy(name.data(), message.data() + bytes, name.size());
  Layout layout;
  layout.file_bytes = numbers[0];
  layout.head_bytes = numbers[1];
  layout.offsets.assign(numbers.begin() + 3, numbers.end());
  return {name, layout};
}

// One save, from begin to commit.
class Save {
 public:
  Save(comm::Communicator& comm, const Snapshot& snapshot, const SaveOptions& options, const Io& io)
      : comm_(comm), snapshot_(snapshot), options_(options), io_(io) {}

  SaveResult run(std::optional<StagingRing>& ring) {
    const Clock::time_point start = Clock::now();
    check();
    create();
    exchange_parts();
    write(ring);
    commit();
    SaveResult result{options_.folder / step_folder(options_.step),
                      Bytes(static_cast<std::int64_t>(layout_.file_bytes)), seconds_since(start),
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

  void create() {
    comm::ByteVector message;
    comm_.agree("checkpoint create", [&] {
      if (!comm_.is_root()) return;
      draft_.emplace(io_, options_.folder, options_.step);
      const fs::path path = draft_->path() / kStateFile;
      layout_ = io_.around("create", path, [&] {
        return create_state_file(path, snapshot_.tensors, snapshot_.extra, options_.step);
      });
      // First the length: without any data, HDF5's file is shorter than the head.
      io_.allocate(path, layout_.file_bytes);
      head_crcs_ = head_crcs(path, layout_.head_bytes);
      // Before others write: on NFS this client's cached pages would otherwise land on top of their
      // bytes later.
      const FileDescriptor file = io_.open("open", path, O_WRONLY);
      io_.sync("fsync", file.get(), path);
      message = pack(path, layout_);
    });
    auto [path, layout] =
        unpack(comm_.broadcast(std::move(message), "checkpoint layout"), snapshot_.tensors.size());
    path_ = std::move(path);
    if (!comm_.is_root()) layout_ = std::move(layout);
    map_.emplace(snapshot_.tensors, layout_);
  }

  void exchange_parts() {
    Split split;
    comm_.agree("checkpoint plan", [&] {
      split = split_by_owner(*map_, segments_of(*map_, snapshot_.extents), comm_.size());
    });
    const auto me = static_cast<std::size_t>(comm_.rank().value);
    std::vector<Segment> parts = std::move(split.parts_by_rank[me]);
    std::vector<comm::Message> out;
    for (std::size_t rank = 0; rank < split.parts_by_rank.size(); ++rank) {
      if (rank == me || split.parts_by_rank[rank].empty()) continue;
      out.push_back({Rank(static_cast<std::int64_t>(rank)), pack_parts(split.parts_by_rank[rank])});
    }
    received_ = comm_.exchange(std::move(out), "checkpoint shared blocks");
    comm_.agree("checkpoint shared blocks", [&] {
      for (const comm::Message& message : received_) unpack_parts(*map_, message.bytes, parts);
      segments_ = merge_parts(*map_, std::move(split.own), std::move(parts));
    });
  }

  void write(std::optional<StagingRing>& ring) {
    Written written;
    const bool direct = options_.driver == Driver::kDirect;
    comm_.agree("checkpoint write", [&] {
      if (!ring) ring.emplace();
      if (direct) written = write_segments(io_, *ring, path_, *map_, segments_);
    });
    if (!direct) {
      if (options_.mpiio.transfer == Transfer::kCollective) {
        if (auto note = avoid_vulcan()) notes_.push_back(std::move(*note));
      }
      written = write_with_mpiio(io_, *ring, comm_, path_, *map_, segments_, options_.mpiio);
      finish_file();
    }
    if (direct && !written.direct)
      notes_.push_back("no O_DIRECT here: written through the page cache");
    if (!written.synced) notes_.push_back("no fsync here: a power cut may lose this checkpoint");
    pieces_ = gather_pieces(comm_, written.pieces);
  }

  // Parallel HDF5 cuts the file behind the last tensor, and may have touched its own part.
  void finish_file() {
    comm_.agree("checkpoint length", [&] {
      if (!comm_.is_root()) return;
      io_.allocate(path_, layout_.file_bytes);
      head_crcs_ = head_crcs(path_, layout_.head_bytes);
      const FileDescriptor file = io_.open("open", path_, O_WRONLY);
      io_.sync("fsync", file.get(), path_);
    });
  }

  void commit() {
    comm_.agree("checkpoint commit", [&] {
      if (!comm_.is_root()) return;
      Manifest manifest;
      manifest.step = options_.step;
      manifest.world_size = comm_.size();
      manifest.versions = {{"trireme", std::string(build::kVersion)}, {"hdf5", hdf5_version()}};
      manifest.tensors = snapshot_.tensors;
      manifest.layout = layout_;
      manifest.head_crcs = head_crcs_;
      manifest.crcs = join_pieces(*map_, std::move(pieces_));
      draft_->commit(to_json(manifest));
    });
  }

  comm::Communicator& comm_;
  const Snapshot& snapshot_;
  const SaveOptions& options_;
  const Io& io_;
  std::optional<Draft> draft_;  // root's
  std::vector<std::uint32_t> head_crcs_;
  fs::path path_;
  Layout layout_;
  std::optional<FileMap> map_;
  std::vector<comm::Message> received_;  // segments_ point into it
  std::vector<Segment> segments_;
  std::vector<CrcPiece> pieces_;
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
