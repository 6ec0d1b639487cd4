#include "trireme/comm/transfers.hpp"

#include "communicator_impl.hpp"

#include <algorithm>

namespace trireme::comm {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 30;
constexpr int kFirstTag = 1024;  // below: the communicator's own messages
constexpr int kTags = 1 << 20;   // below the least upper bound that MPI libraries in use give

}  // namespace

struct Transfers::Impl {
  Communicator& comm;
  MPI_Comm raw;
  std::vector<MPI_Request> requests;
};

Transfers::Transfers(Communicator& comm)
    : impl_(std::make_unique<Impl>(Impl{comm, comm.impl_->comm.get(), {}})) {}
// After an error some may still be in flight; the memory that they write to may go away now.
Transfers::~Transfers() {
  for (MPI_Request& request : impl_->requests) {
    if (request == MPI_REQUEST_NULL || !mpi_is_up()) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
}

void Transfers::send(Rank to, int tag, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const int count = static_cast<int>(std::min(kPiece, bytes.size() - at));
    impl_->requests.emplace_back();
    check(MPI_Isend(bytes.data() + at, count, MPI_BYTE, static_cast<int>(to.value),
                    kFirstTag + tag % kTags, impl_->raw, &impl_->requests.back()),
          "MPI_Isend");
  }
}

void Transfers::receive(Rank from, int tag, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const int count = static_cast<int>(std::min(kPiece, bytes.size() - at));
    impl_->requests.emplace_back();
    check(MPI_Irecv(bytes.data() + at, count, MPI_BYTE, static_cast<int>(from.value),
                    kFirstTag + tag % kTags, impl_->raw, &impl_->requests.back()),
          "MPI_Irecv");
  }
}

bool Transfers::done() {
  if (impl_->requests.empty()) return true;
  int all = 0;
  check(MPI_Testall(static_cast<int>(impl_->requests.size()), impl_->requests.data(), &all,
                    MPI_STATUSES_IGNORE),
        "MPI_Testall");
  if (all != 0) impl_->requests.clear();
  return all != 0;
}

void Transfers::wait(std::string_view what, const std::function<void()>& idle) {
  impl_->comm.impl_->wait(impl_->requests, what, idle);
  impl_->requests.clear();
}

}  // namespace trireme::comm
