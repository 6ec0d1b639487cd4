// Creates the HDF5 file of a checkpoint, with a place for every tensor but none of their bytes.
#pragma once

#include "ckpt/format.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme::ckpt {

// Writes `path` with the serial driver, closes it and returns where everything is. Every dataset is
// contiguous, starts on a 4 KiB border behind the head and shares no 4 KiB block with anything
// else; this is checked. The same arguments give the same bytes; `format` and
// `step` become attributes. The file is not yet as long as
// layout.file_bytes. Throws Io.
Layout create_state_file(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                         const std::map<std::string, std::string>& texts, Step step, int format);

}  // namespace trireme::ckpt
