// How fast checkpoints are written and read here, against what the disk itself takes.
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/comm/communicator.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::ckpt {

struct MeasureOptions {
  std::filesystem::path folder;  // on the disk to measure; what is written there is removed
  Bytes bytes{1 << 30};          // of all ranks together
  int runs = 5;
  bool mpiio = false;  // whether saves through parallel HDF5 are measured too
  std::function<void(const std::string&)> progress = {};  // root: told of each run
};

struct Timing {
  std::string what;             // "raw write", "save", "load", ...
  std::string how;              // one sentence
  std::string bound;            // the row that it is held against; empty for the bounds themselves
  std::vector<double> seconds;  // of each run, of the slowest rank
  Bytes bytes;

  double median_seconds() const;
};

struct Measured {
  std::filesystem::path folder;
  int ranks = 1;
  std::vector<Timing> timings;
  std::vector<std::string> notes;  // what the file system could not do
};

// @collective. Measures in turn, run by run: O_DIRECT into a file for each rank and back, which is
// the bound; a save (fsync and checksums included); a load from disk with every checksum checked.
// What is loaded is compared with what was saved. Throws Io, Corrupt.
Measured measure_io(comm::Communicator& comm, const MeasureOptions& options);

// Returns a table for a person, or one JSON object with machine, build and every run.
std::string to_text(const Measured& measured, bool json);

}  // namespace trireme::ckpt
