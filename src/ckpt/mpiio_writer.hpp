// Writes one rank's share of state.h5 through parallel HDF5, for file systems on which MPI-IO is
// better than many direct writers: same plan, same checksums and same bytes as direct_writer.hpp.
//
// Bytes are staged, so that the checksum is of what HDF5 was given; a call takes at most a staging
// buffer, far below the 2 GiB at which HDF5 1.10 and MPI-IO fail. What waits inside HDF5 has no
// deadline of ours.
#pragma once

#include "trireme/comm/communicator.hpp"

#include "ckpt/direct_writer.hpp"

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::ckpt {

// @collective. Like write_segments, with ranks that have nothing joining in every collective call.
// `most` is the largest number of bytes of a call. Any rank's failure is thrown on all. Throws Io.
Written write_with_mpiio(const Io& io, StagingRing& ring, comm::Communicator& comm,
                         const std::filesystem::path& path, const FileMap& map,
                         std::span<const Segment> segments, const MpiioOptions& options);

// Open MPI's collective component `vulcan` has hung saves on odd numbers of ranks. Unless somebody
// chose a component, chooses another one, before the first file is opened; returns what to tell
// about it, if anything.
std::optional<std::string> avoid_vulcan();

}  // namespace trireme::ckpt
