// Where a rank keeps what does not stay in memory.
#pragma once

#include <chrono>
#include <filesystem>

namespace trireme::parallel {

struct DiskOptions {
  std::filesystem::path folder;                // on a local disk; empty: memory
  std::chrono::duration<double> timeout{600};  // for every transfer
};

}  // namespace trireme::parallel
