// Whole pieces at the end of a file, for metrics.cpp and tensorboard.cpp.
#pragma once

#include "trireme/base/handle.hpp"

#include <filesystem>
#include <string_view>

namespace trireme::obs::detail {

// Opens for appending with O_CLOEXEC and `flags` (O_CREAT, O_EXCL, O_TRUNC). Throws Io; with
// O_EXCL, returns nothing when the file exists.
FileDescriptor open_to_append(const std::filesystem::path& path, int flags);

// Appends `text` by one write(2), so that a process killed at any time leaves it whole or absent.
// When the file system takes only a part (full disk), the part is removed again. Throws Io naming
// `path`.
void append_whole(int file, std::string_view text, const std::filesystem::path& path);

}  // namespace trireme::obs::detail
