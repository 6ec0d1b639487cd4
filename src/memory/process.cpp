#include "trireme/memory/process.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

namespace trireme::memory {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Returns the value of a "Name:   123 kB" line in bytes, 0 when there is none.
Bytes field(const char* file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, name.size(), name) == 0 && line.size() > name.size() &&
        line[name.size()] == ':') {
      return Bytes(std::strtoll(line.c_str() + name.size() + 1, nullptr, 10) * 1024);
    }
  }
  return Bytes(0);
}

}  // namespace

namespace {

// Makes the heap one long range of addresses, in which the kernel is asked for huge pages. Costs
// nothing until touched.
void prefer_huge_pages(std::size_t bytes) {
  void* volatile range =
      std::malloc(bytes);  // volatile: the compiler may drop a pair of malloc and free
  if (range == nullptr) return;
  const auto begin =
      (reinterpret_cast<std::uintptr_t>(range) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<std::uintptr_t>(range) + bytes) / kHugePage * kHugePage;
  std::free(range);
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a wish
}

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
  prefer_huge_pages(std::size_t{1} << 30);
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
