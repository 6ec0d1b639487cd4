// One file of a checkpoint, from HDF5's metadata to durable bytes, by the ranks that share it: all of
// a job, or those of a node.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"

#include "ckpt/direct_writer.hpp"
#include "ckpt/io.hpp"
#include "ckpt/manifest.hpp"

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::ckpt {

// What goes into the file; `tensors` is the same on all of its ranks, `texts` are root's.
struct FileContent {
  std::vector<TensorSpec> tensors;
  std::span<const ConstExtent> extents;
  std::map<std::string, std::string> texts;
};

struct FileWritten {
  StateFile file;                  // root's; `name` is the path's
  std::vector<std::string> notes;  // of this rank
};

// @collective. Makes `path`, which does not exist. The ring is made by the first call. Any rank's
// failure is thrown on all of them. Throws Io, Internal.
FileWritten write_file(const Io& io, std::optional<StagingRing>& ring, comm::Communicator& comm,
                       const std::filesystem::path& path, const FileContent& content,
                       const SaveOptions& options);

}  // namespace trireme::ckpt
