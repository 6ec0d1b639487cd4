#include "check.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <string>

namespace trireme::comm {

void check(int code, std::string_view call, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  throw Error(ErrorKind::kPeerLost, fmt::format("{} failed: {}", call, text),
              "the messages of the other ranks and of the launcher say more", where);
}

bool mpi_is_up() noexcept {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

void MpiCommTraits::close(MPI_Comm comm) noexcept {
  if (mpi_is_up()) MPI_Comm_free(&comm);
}

}  // namespace trireme::comm
