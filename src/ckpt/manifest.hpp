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

struct Manifest {
  Step step;
  int world_size = 1;
  std::map<std::string, std::string> versions;  // of what wrote it, for people
  std::vector<TensorSpec> tensors;
  Layout layout;
  std::vector<std::uint32_t> head_crcs;  // per block of kCrcBlock bytes of [0, head_bytes)
  CrcTables crcs;
};

std::string to_json(const Manifest& manifest);

// Returns the manifest after checking its CRC, its format version and every number against the
// others, so that whoever uses it needs no doubts. Throws Corrupt naming `path`, or Config when a
// newer version of the format wrote it.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

// Reads <checkpoint>/manifest.json.
Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace trireme::ckpt
