#include "trireme/comm/node_group.hpp"

#include "trireme/base/error.hpp"

#include "node_group_impl.hpp"
#include "wait.hpp"
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace trireme::comm {

namespace {

constexpr std::size_t kPage = 4096;

// MPI promises no alignment. Mappings begin on pages in every process, so rounding up gives all of
// them the same byte.
std::byte* page_up(void* base) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  return reinterpret_cast<std::byte*>((address + kPage - 1) / kPage * kPage);
}

void allocate_window(MPI_Comm comm, std::size_t bytes, MPI_Win* window) {
  MPI_Info info = MPI_INFO_NULL;
  check(MPI_Info_create(&info), "MPI_Info_create");
  // Segments on pages of their own: first touch then places them near their owner.
  check(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
  void* base = nullptr;
  const int code =
      MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, info, comm, &base, window);
  MPI_Info_free(&info);
  check(code, "MPI_Win_allocate_shared");
}

// Makes and zeroes this rank's segment and finds those of the others. Blocking MPI: it happens at
// the start, where the launcher itself watches for dead ranks.
std::unique_ptr<SharedSegments::Impl> make_segments(MPI_Comm comm, int rank, int size,
                                                    std::size_t mine) {
  auto impl = std::make_unique<SharedSegments::Impl>();
  allocate_window(comm, mine == 0 ? 0 : mine + kPage, &impl->window);
  for (int local = 0; local < size; ++local) {
    MPI_Aint bytes = 0;
    int unit = 1;
    void* base = nullptr;
    check(MPI_Win_shared_query(impl->window, local, &bytes, &unit, &base), "MPI_Win_shared_query");
    const auto usable = bytes == 0 ? 0 : static_cast<std::size_t>(bytes) - kPage;
    impl->segments.emplace_back(usable == 0 ? nullptr : page_up(base), usable);
  }
  const auto own = impl->segments[static_cast<std::size_t>(rank)];
  std::fill(own.begin(), own.end(), std::byte{0});
  check(MPI_Barrier(comm), "MPI_Barrier");
  return impl;
}

FileDescriptor open_process(pid_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

SharedSegments::Impl::~Impl() {
  // Freeing a window is collective; after a failure the others may never come, and the memory ends
  // with the process.
  if (window != MPI_WIN_NULL && mpi_is_up() && std::uncaught_exceptions() == 0)
    MPI_Win_free(&window);
}

SharedSegments::SharedSegments(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SharedSegments::SharedSegments(SharedSegments&&) noexcept = default;
SharedSegments& SharedSegments::operator=(SharedSegments&&) noexcept = default;
SharedSegments::~SharedSegments() = default;

std::span<std::byte> SharedSegments::of(int local) const {
  return impl_->segments[static_cast<std::size_t>(local)];
}

NodeGroup::NodeGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeGroup::NodeGroup(NodeGroup&&) noexcept = default;
NodeGroup::~NodeGroup() = default;

int NodeGroup::local_rank() const { return impl_->rank; }
int NodeGroup::size() const { return impl_->size; }
Rank NodeGroup::world_rank(int local) const {
  return Rank(impl_->world_ranks[static_cast<std::size_t>(local)]);
}

SharedSegments NodeGroup::allocate(std::size_t mine) {
  return SharedSegments(make_segments(impl_->comm.get(), impl_->rank, impl_->size, mine));
}

void NodeGroup::barrier(std::string_view what, const std::function<void()>& idle) {
  const std::uint64_t target = ++impl_->barriers;
  impl_->status(impl_->rank).barriers.store(target, std::memory_order_release);
  wait_for_all(
      [&](int local) {
        return impl_->status(local).barriers.load(std::memory_order_acquire) >= target;
      },
      what, idle);
}

void NodeGroup::wait_for_all(const std::function<bool(int)>& arrived, std::string_view what,
                             const std::function<void()>& idle) {
  Wait wait(*this, *impl_, impl_->timeout, what);
  const auto late = [&] {
    std::vector<int> ranks;
    for (int local = 0; local < impl_->size; ++local) {
      if (!arrived(local)) ranks.push_back(local);
    }
    return ranks;
  };
  for (int local = 0; local < impl_->size; ++local) {
    while (!arrived(local)) {
      if (idle) idle();
      wait.turn(late);
    }
  }
}

void NodeGroup::set_place(const char* place, std::int64_t step) {
  RankStatus& mine = impl_->status(impl_->rank);
  std::size_t i = 0;
  for (; i + 1 < mine.place.size() && place[i] != '\0'; ++i) {
    mine.place[i].store(place[i], std::memory_order_relaxed);
  }
  mine.place[i].store('\0', std::memory_order_relaxed);
  mine.step.store(step, std::memory_order_relaxed);
}

void NodeGroup::check_alive(std::string_view what) const {
  for (int local = 0; local < impl_->size; ++local) {
    const FileDescriptor& process = impl_->processes[static_cast<std::size_t>(local)];
    if (!process) continue;
    pollfd poll_one{process.get(), POLLIN, 0};
    if (poll(&poll_one, 1, 0) <= 0) continue;
    throw Error(ErrorKind::kPeerLost,
                fmt::format("{} has ended while others waited in '{}'", describe(local), what),
                "its own message, the launcher's, or the kernel log (out of memory?) says why");
  }
}

std::string NodeGroup::describe(int local) const {
  const RankStatus& status = impl_->status(local);
  std::string place;
  for (const auto& c : status.place) {
    const char letter = c.load(std::memory_order_relaxed);
    if (letter == '\0') break;
    place += letter;
  }
  return fmt::format("rank {} (pid {}) in '{}' at step {}", world_rank(local).value,
                     status.pid.load(std::memory_order_relaxed), place,
                     status.step.load(std::memory_order_relaxed));
}

std::vector<int> NodeGroup::Impl::behind_in_collectives() const {
  std::vector<int> behind;
  const auto mine = status(rank).collectives.load(std::memory_order_relaxed);
  for (int local = 0; local < size; ++local) {
    if (status(local).collectives.load(std::memory_order_relaxed) < mine) behind.push_back(local);
  }
  return behind;
}

std::unique_ptr<NodeGroup::Impl> make_node_group(CommHandle comm, std::vector<int> world_ranks,
                                                 std::chrono::duration<double> timeout) {
  auto impl = std::make_unique<NodeGroup::Impl>();
  check(MPI_Comm_rank(comm.get(), &impl->rank), "MPI_Comm_rank");
  check(MPI_Comm_size(comm.get(), &impl->size), "MPI_Comm_size");
  impl->comm = std::move(comm);
  impl->world_ranks = std::move(world_ranks);
  impl->timeout = timeout;

  impl->status_memory = std::make_unique<SharedSegments>(
      make_segments(impl->comm.get(), impl->rank, impl->size, sizeof(RankStatus)));
  impl->status(impl->rank).pid.store(getpid(), std::memory_order_release);
  check(MPI_Barrier(impl->comm.get()), "MPI_Barrier");
  for (int local = 0; local < impl->size; ++local) {
    const pid_t pid = impl->status(local).pid.load(std::memory_order_acquire);
    impl->processes.push_back(local == impl->rank ? FileDescriptor() : open_process(pid));
  }
  return impl;
}

}  // namespace trireme::comm
