// The JSON header of a .safetensors file: text to tensors and back, and whether what it says can be
// true. Pure: no file is touched.
#pragma once

#include "trireme/ckpt/safetensors.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ckpt::safetensors {

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<Tensor> tensors;  // `offset` counts from the end of the header
};

// Throws Corrupt naming `path`, tensor and, for what is no JSON, the byte of the file.
Header parse_header(std::string_view text, const std::filesystem::path& path);

// Turns offsets into places in the file and sorts by them. Throws Corrupt unless the tensors tile
// the bytes from `data_begin` to `file_bytes` exactly: no overlap, no hole, nothing before or
// behind.
void place(std::vector<Tensor>& tensors, std::uint64_t data_begin, std::uint64_t file_bytes,
           const std::filesystem::path& path);

// Returns the header of these entries, one behind the other, padded so that data starts on an
// 8-byte border. Throws Internal for two entries of one name or an impossible shape.
std::string header_of(const std::vector<Entry>& entries,
                      const std::map<std::string, std::string>& metadata,
                      std::uint64_t& data_bytes);

}  // namespace trireme::ckpt::safetensors
