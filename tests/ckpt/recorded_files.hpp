// What a program does to the files below a folder, system call by system call, and what a disk would
// hold of it after a power cut.
//
// recorded_files.cpp defines open, pwrite, fsync, rename and their like in the test program itself;
// the calls of our libraries, of HDF5 and of the C++ library come by there. From the record a folder
// can be built that holds what was durable at a moment and any part of what was not yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::testing {

struct FileOperation {
  enum class Kind { kMakeFolder, kCreate, kWrite, kResize, kSync, kRename, kExchange, kRemove };
  Kind kind;
  std::filesystem::path path;   // below the watched folder, relative; empty: the folder itself
  std::filesystem::path other;  // kRename, kExchange
  std::uint64_t offset = 0;     // kWrite; kResize: the new length
  std::string bytes;            // kWrite
};

// Runs `action` and returns the calls that it made below `folder`, in order, from all threads.
std::vector<FileOperation> record(const std::filesystem::path& folder,
                                  const std::function<void()>& action);

// How much of what is not durable yet the disk nevertheless holds.
struct Luck {
  // Returns how many of `pending` changes of names, in the order in which they were made, arrived.
  std::function<std::size_t(std::size_t pending)> names;
  // Returns whether a 4 KiB block of unsynced data arrived; if not, it reads as before the write.
  std::function<bool()> data;
};

// Builds in `target`, which is empty, what the watched folder holds when power fails after the first
// `count` operations. The folder held the content of `before` at the start, durably.
void after_power_cut(const std::vector<FileOperation>& operations, std::size_t count,
                     const Luck& luck, const std::filesystem::path& before,
                     const std::filesystem::path& target);

}  // namespace trireme::testing
