// manifest.json: written last, so its presence says that a checkpoint is complete; holds every
// checksum and its own.
#pragma once

#include "ckpt/crc_table.hpp"
#include "ckpt/format.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme::ckpt {

// One HDF5 file of a checkpoint.
struct StateFile {
  std::string name;
  std::vector<TensorSpec> tensors;  // its datasets
  Layout layout;
  std::vector<std::uint32_t> head_crcs;  // per block of kCrcBlock bytes of [0, head_bytes)
  CrcTables crcs;                        // of each dataset
};

// Where consecutive elements of a tensor are: all of dataset `stored` of a file.
struct Part {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::size_t file = 0;
  std::size_t stored = 0;
};

struct Manifest {
  int version = kFormatVersion;
  Step step;
  int world_size = 1;
  std::map<std::string, std::string> versions;  // of what wrote it, for people
  std::vector<TensorSpec> tensors;
  std::vector<StateFile> files;
  std::vector<Part> parts;  // by tensor and begin; they tile every tensor

  // Format 1 has one file, state.h5, whose datasets are the tensors; format 2 has a file for each
  // node.
  bool by_node() const { return version > 1; }
};

// Returns the parts of a checkpoint of one file.
std::vector<Part> whole_parts(const std::vector<TensorSpec>& tensors);

// Returns the text of a manifest of version 1 or 2, by what it holds.
std::string to_json(const Manifest& manifest);

// A file and its parts as text, for ranks to send, and back. Throws Corrupt for a text that no
// checkpoint could hold.
std::string file_to_json(const StateFile& file, const std::vector<Part>& parts);
void add_file(const std::string& text, Manifest& manifest);

// Throws Corrupt unless the parts tile every tensor; brings them in order.
void check_parts(Manifest& manifest, const std::filesystem::path& path);

// Returns the manifest after checking its CRC, its format version and every number against the
// others, so that whoever uses it needs no doubts. Throws Corrupt naming `path`, or Config when a
// newer version of the format wrote it.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

// Reads <checkpoint>/manifest.json.
Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace trireme::ckpt
