#include "trireme/comm/communicator.hpp"

#include "trireme/base/environment.hpp"

#include "communicator_impl.hpp"
#include "wait.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace trireme::comm {

namespace {

constexpr int kExchangeTag = 7;

int checked_int(std::size_t bytes, std::string_view what) {
  ensure(bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
         fmt::format("'{}' is a control-sized message", what));
  return static_cast<int>(bytes);
}

// An error as bytes, for agree(): kind, rank, step and four texts.
ByteVector pack(const Error& error) {
  ByteVector out;
  const auto put = [&](const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out.insert(out.end(), bytes, bytes + size);
  };
  const std::int64_t head[3] = {static_cast<std::int64_t>(error.kind), error.rank, error.step};
  put(head, sizeof head);
  for (const std::string* text : {&error.message, &error.hint, &error.cause, &error.host}) {
    const std::uint64_t size = text->size();
    put(&size, sizeof size);
    put(text->data(), text->size());
  }
  return out;
}

Error unpack(const ByteVector& bytes) {
  std::size_t at = 0;
  const auto take = [&](void* data, std::size_t size) {
    std::memcpy(data, bytes.data() + at, size);
    at += size;
  };
  std::int64_t head[3];
  take(head, sizeof head);
  std::string texts[4];
  for (std::string& text : texts) {
    std::uint64_t size = 0;
    take(&size, sizeof size);
    text.resize(size);
    take(text.data(), size);
  }
  Error error(static_cast<ErrorKind>(head[0]), texts[0], texts[1]);
  error.rank = head[1];
  error.step = head[2];
  error.cause = texts[2];
  error.host = texts[3];
  return error;
}

Error describe_failure(const std::exception& exception, int rank) {
  const auto* known = dynamic_cast<const Error*>(&exception);
  const auto* memory = dynamic_cast<const std::bad_alloc*>(&exception);
  Error error = known != nullptr    ? *known
                : memory != nullptr ? Error(ErrorKind::kOutOfMemory, "an allocation was refused",
                                            "use more nodes or a smaller model")
                                    : Error(ErrorKind::kInternal, exception.what());
  if (error.rank < 0) error.rank = rank;
  if (error.host.empty()) error.host = host_name();
  return error;
}

}  // namespace

std::unique_ptr<Communicator::Impl> make_communicator(CommHandle comm, NodeGroup* node,
                                                      NodeGroup::Impl* node_impl,
                                                      std::chrono::duration<double> timeout) {
  auto impl = std::make_unique<Communicator::Impl>();
  check(MPI_Comm_set_errhandler(comm.get(), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm.get(), &impl->rank), "MPI_Comm_rank");
  check(MPI_Comm_size(comm.get(), &impl->size), "MPI_Comm_size");
  impl->comm = std::move(comm);
  impl->node = node;
  impl->node_impl = node_impl;
  impl->timeout = timeout;
  return impl;
}

void Communicator::Impl::enter() {
  node_impl->status(node_impl->rank).collectives.fetch_add(1, std::memory_order_relaxed);
}

void Communicator::Impl::wait(std::span<MPI_Request> requests, std::string_view what,
                              const std::function<void()>& idle) {
  Wait waiting(*node, *node_impl, timeout, what);
  for (;;) {
    int done = 0;
    check(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        what);
    if (done != 0) return;
    if (idle) idle();
    waiting.turn([this] { return node_impl->behind_in_collectives(); });
  }
}

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Rank Communicator::rank() const { return Rank(impl_->rank); }
int Communicator::size() const { return impl_->size; }
std::chrono::duration<double> Communicator::timeout() const { return impl_->timeout; }
void Communicator::set_timeout(std::chrono::duration<double> timeout) { impl_->timeout = timeout; }
const void* Communicator::native() const { return impl_->comm.address(); }

void Communicator::barrier(std::string_view what) {
  impl_->enter();
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(impl_->comm.get(), &request), "MPI_Ibarrier");
  impl_->wait({&request, 1}, what);
}

ByteVector Communicator::broadcast(ByteVector bytes, std::string_view what, Rank root) {
  impl_->enter();
  const int root_rank = static_cast<int>(root.value);
  std::uint64_t size = bytes.size();
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibcast(&size, 1, MPI_UINT64_T, root_rank, impl_->comm.get(), &request), "MPI_Ibcast");
  impl_->wait({&request, 1}, what);
  bytes.resize(size);
  check(MPI_Ibcast(bytes.data(), checked_int(size, what), MPI_BYTE, root_rank, impl_->comm.get(),
                   &request),
        "MPI_Ibcast");
  impl_->wait({&request, 1}, what);
  return bytes;
}

std::vector<ByteVector> Communicator::all_gather(std::span<const std::byte> mine,
                                                 std::string_view what) {
  impl_->enter();
  const auto ranks = static_cast<std::size_t>(impl_->size);
  const int my_size = checked_int(mine.size(), what);
  std::vector<int> sizes(ranks);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(&my_size, 1, MPI_INT, sizes.data(), 1, MPI_INT, impl_->comm.get(), &request),
        "MPI_Iallgather");
  impl_->wait({&request, 1}, what);
  std::vector<int> offsets(ranks);
  std::size_t total = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    offsets[r] = checked_int(total, what);
    total += static_cast<std::size_t>(sizes[r]);
  }
  checked_int(total, what);
  ByteVector all(total);
  check(MPI_Iallgatherv(mine.data(), my_size, MPI_BYTE, all.data(), sizes.data(), offsets.data(),
                        MPI_BYTE, impl_->comm.get(), &request),
        "MPI_Iallgatherv");
  impl_->wait({&request, 1}, what);
  std::vector<ByteVector> result(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto begin = all.begin() + offsets[r];
    result[r].assign(begin, begin + sizes[r]);
  }
  return result;
}

std::vector<Message> Communicator::exchange(std::vector<Message> out, std::string_view what) {
  const auto ranks = static_cast<std::size_t>(impl_->size);
  // Who sends how many messages to whom, and their sizes, in the order sent.
  std::vector<std::uint64_t> table;
  for (const Message& message : out) {
    table.push_back(static_cast<std::uint64_t>(message.peer.value));
    table.push_back(message.bytes.size());
  }
  const auto tables = all_gather(std::as_bytes(std::span(table)), what);

  std::vector<Message> in;
  for (std::size_t sender = 0; sender < ranks; ++sender) {
    std::vector<std::uint64_t> entries(tables[sender].size() / sizeof(std::uint64_t));
    std::memcpy(entries.data(), tables[sender].data(), tables[sender].size());
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (entries[i] != static_cast<std::uint64_t>(impl_->rank)) continue;
      in.push_back({Rank(static_cast<std::int64_t>(sender)), ByteVector(entries[i + 1])});
    }
  }
  std::vector<MPI_Request> requests;
  requests.reserve(in.size() + out.size());
  for (Message& message : in) {
    requests.emplace_back();
    check(MPI_Irecv(message.bytes.data(), checked_int(message.bytes.size(), what), MPI_BYTE,
                    static_cast<int>(message.peer.value), kExchangeTag, impl_->comm.get(),
                    &requests.back()),
          "MPI_Irecv");
  }
  for (const Message& message : out) {
    requests.emplace_back();
    check(MPI_Isend(message.bytes.data(), checked_int(message.bytes.size(), what), MPI_BYTE,
                    static_cast<int>(message.peer.value), kExchangeTag, impl_->comm.get(),
                    &requests.back()),
          "MPI_Isend");
  }
  impl_->wait(requests, what);
  return in;
}

void Communicator::agree(std::string_view what, const std::function<void()>& action) {
  ByteVector mine;
  try {
    action();
  } catch (const std::exception& exception) {
    mine = pack(describe_failure(exception, impl_->rank));
  }
  const std::vector<ByteVector> failures = all_gather(mine, what);
  const auto first = std::find_if(failures.begin(), failures.end(),
                                  [](const ByteVector& bytes) { return !bytes.empty(); });
  if (first == failures.end()) return;
  Error error = unpack(*first);
  error.everywhere = true;
  const bool common = std::all_of(failures.begin(), failures.end(), [&](const ByteVector& bytes) {
    return !bytes.empty() && unpack(bytes).message == error.message;
  });
  if (common) {  // nobody's in particular
    error.rank = -1;
    error.host.clear();
  }
  throw error;
}

Communicator Communicator::split(int color, int key, std::string_view what) {
  impl_->enter();
  CommHandle part;
  check(MPI_Comm_split(impl_->comm.get(), color, key, part.address()), what);
  return Communicator(
      make_communicator(std::move(part), impl_->node, impl_->node_impl, impl_->timeout));
}

}  // namespace trireme::comm
