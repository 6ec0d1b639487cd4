// What is fixed about the format, shared by writer and reader: names, block sizes, element types.
//
// state.h5 consists of a head (everything that HDF5 keeps about the file, and the small texts) and
// of the tensors' bytes behind it, each tensor from a 4 KiB border on and padded with zeros to the
// next. manifest.json says where, and holds the checksums.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ckpt {

inline constexpr int kFormatVersion = 1;      // of one file
inline constexpr int kNodeFormatVersion = 2;  // of a file for each node; the newest that is known
inline constexpr std::uint64_t kFileBlock = 4096;        // the unit of O_DIRECT and of ownership
inline constexpr std::uint64_t kCrcBlock = 1024 * 1024;  // bytes of a tensor under one CRC
inline constexpr std::string_view kStateFile = "state.h5";
inline constexpr std::string_view kManifestFile = "manifest.json";

constexpr std::uint64_t align_down(std::uint64_t offset) {
  return offset / kFileBlock * kFileBlock;
}
constexpr std::uint64_t align_up(std::uint64_t offset) {
  return align_down(offset + kFileBlock - 1);
}
constexpr std::uint64_t blocks_of(std::uint64_t bytes) {
  return (bytes + kCrcBlock - 1) / kCrcBlock;
}

std::uint64_t element_bytes(DType dtype);
// Returns safetensors' name: "F32", "F64", "I64", "U8".
std::string_view name_of(DType dtype);
std::optional<DType> dtype_named(std::string_view name);

// Returns the number of bytes, or nothing when a dimension is negative or the product does not fit
// in 62 bits.
std::optional<std::uint64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape);

// Returns what is wrong with a name as a path in an HDF5 file and in JSON; empty when nothing.
std::string problem_with_path(std::string_view path);

// Throws Internal when the specs could not be stored: paths wrong, doubled or inside one another,
// shapes impossible.
void check_specs(const std::vector<TensorSpec>& tensors);

// Returns "step-00000012".
std::string step_folder(Step step);
// Returns the step of a folder of exactly that form.
std::optional<Step> step_of(std::string_view folder_name);

// Where everything is in state.h5; made by create_state_file, broadcast, and kept in the manifest.
struct TextPlace {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct Layout {
  std::uint64_t file_bytes = 0;
  std::uint64_t head_bytes = 0;  // [0, head_bytes) is HDF5's own and the texts
  std::vector<std::uint64_t>
      offsets;  // of each tensor's bytes; head_bytes for a tensor without any
  std::vector<TextPlace> texts;
};

}  // namespace trireme::ckpt
