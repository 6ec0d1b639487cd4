// MPI return codes become errors here. Private to the room.
#pragma once

#include "trireme/base/handle.hpp"

#include <mpi.h>

#include <source_location>
#include <string_view>

namespace trireme::comm {

// Throws Internal or PeerLost with MPI's own text when `code` is not success.
void check(int code, std::string_view call,
           std::source_location where = std::source_location::current());

struct MpiCommTraits {
  using Type = MPI_Comm;
  static MPI_Comm null() { return MPI_COMM_NULL; }
  static void close(MPI_Comm comm) noexcept;
};
using CommHandle = Handle<MpiCommTraits>;

// True between MPI_Init and MPI_Finalize: handles that outlive MPI must not be freed.
bool mpi_is_up() noexcept;

}  // namespace trireme::comm
