// Every stage ends in an agreement, so that a rank that fails leaves no other waiting.
#include "ckpt/file_writer.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/checksum.hpp"

#include "ckpt/crc_table.hpp"
#include "ckpt/mpiio_writer.hpp"
#include "ckpt/plan.hpp"
#include "ckpt/sealed.hpp"
#include "ckpt/state_file.hpp"
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;

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

// What root tells the others: where to write.
comm::ByteVector pack(const Layout& layout) {
  std::vector<std::uint64_t> numbers{layout.file_bytes, layout.head_bytes};
  numbers.insert(numbers.end(), layout.offsets.begin(), layout.offsets.end());
  return sealed(std::as_bytes(std::span(numbers)));
}

Layout unpack(std::span<const std::byte> message, std::size_t num_tensors) {
  const auto bytes = unsealed(message);
  std::vector<std::uint64_t> numbers(2 + num_tensors);
  ensure(bytes.size() == numbers.size() * sizeof(std::uint64_t), "root's plan is complete");
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  Layout layout;
  layout.file_bytes = numbers[0];
  layout.head_bytes = numbers[1];
  layout.offsets.assign(numbers.begin() + 2, numbers.end());
  return layout;
}

class FileWriter {
 public:
  FileWriter(const Io& io, comm::Communicator& comm, const fs::path& path,
             const FileContent& content, const SaveOptions& options)
      : io_(io), comm_(comm), path_(path), content_(content), options_(options) {}

  FileWritten run(std::optional<StagingRing>& ring) {
    create();
    exchange_parts();
    write(ring);
    FileWritten written{{}, std::move(notes_)};
    comm_.agree("checkpoint checksums", [&] {
      if (!comm_.is_root()) return;
      CrcTables crcs = join_pieces(*map_, std::move(pieces_));
      written.file = {path_.filename().string(), content_.tensors, layout_, head_crcs_,
                      std::move(crcs)};
    });
    return written;
  }

 private:
  void create() {
    comm::ByteVector message;
    comm_.agree("checkpoint create", [&] {
      if (!comm_.is_root()) return;
      layout_ = io_.around("create", path_, [&] {
        return create_state_file(
            path_, content_.tensors, content_.texts, options_.step,
            options_.files == Files::kNode ? kNodeFormatVersion : kFormatVersion);
      });
      finish_head();
      message = pack(layout_);
    });
    message = comm_.broadcast(std::move(message), "checkpoint layout");
    if (!comm_.is_root()) layout_ = unpack(message, content_.tensors.size());
    map_.emplace(content_.tensors, layout_);
  }

  void finish_head() {
    // First the length: without any data, HDF5's file is shorter than the head.
    io_.allocate(path_, layout_.file_bytes);
    head_crcs_ = head_crcs(path_, layout_.head_bytes);
    // Before others write: on NFS this client's cached pages would otherwise land on top of their
    // bytes later.
    const FileDescriptor file = io_.open("open", path_, O_WRONLY);
    io_.sync("fsync", file.get(), path_);
  }

  void exchange_parts() {
    Split split;
    comm_.agree("checkpoint plan", [&] {
      split = split_by_owner(*map_, segments_of(*map_, content_.extents), comm_.size());
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
      // Parallel HDF5 cuts the file behind the last tensor, and may have touched its own part.
      comm_.agree("checkpoint length", [&] {
        if (comm_.is_root()) finish_head();
      });
    }
    if (direct && !written.direct)
      notes_.push_back("no O_DIRECT here: written through the page cache");
    if (!written.synced) notes_.push_back("no fsync here: a power cut may lose this checkpoint");
    pieces_ = gather_pieces(comm_, written.pieces);
  }

  const Io& io_;
  comm::Communicator& comm_;
  const fs::path& path_;
  const FileContent& content_;
  const SaveOptions& options_;
  std::vector<std::uint32_t> head_crcs_;
  Layout layout_;
  std::optional<FileMap> map_;
  std::vector<comm::Message> received_;  // segments_ point into it
  std::vector<Segment> segments_;
  std::vector<CrcPiece> pieces_;
  std::vector<std::string> notes_;
};

}  // namespace

FileWritten write_file(const Io& io, std::optional<StagingRing>& ring, comm::Communicator& comm,
                       const fs::path& path, const FileContent& content,
                       const SaveOptions& options) {
  return FileWriter(io, comm, path, content, options).run(ring);
}

}  // namespace trireme::ckpt
