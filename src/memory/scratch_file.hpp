// A file without a name on a local disk, reserved whole: it goes away with the process, however
// that ends. Private to the room.
#pragma once

#include "trireme/base/handle.hpp"
#include "trireme/memory/tier_file.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::memory {

struct ScratchFile {
  FileDescriptor fd;
  bool direct = false;             // past the page cache
  std::vector<std::string> notes;  // what the file system cannot do
};

// Throws Io with what was needed and what is free.
ScratchFile make_scratch_file(const TierFileOptions& options, std::uint64_t bytes);

// Goes on through the page cache, for file systems that accept O_DIRECT and then refuse to use it.
void leave_direct(ScratchFile& file, const TierFileOptions& options);

}  // namespace trireme::memory
