#include "trireme/memory/process.hpp"

#include <malloc.h>
#include <sys/resource.h>

#include <fstream>
#include <limits>
#include <string>

namespace trireme::memory {

namespace {

// Returns the value of a "Name:   123 kB" line in bytes, 0 when there is none.
Bytes field(const char* file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, name.size(), name) == 0 && line.size() > name.size() && line[name.size()] == ':') {
      return Bytes(std::strtoll(line.c_str() + name.size() + 1, nullptr, 10) * 1024);
    }
  }
  return Bytes(0);
}

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

Usage usage() {
  return {field("/proc/self/smaps_rollup", "Rss"), field("/proc/self/smaps_rollup", "Pss"),
          field("/proc/self/status", "VmHWM")};
}

Bytes peak_resident() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return Bytes(use.ru_maxrss * 1024);
}

}  // namespace trireme::memory
