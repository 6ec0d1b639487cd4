// A device group over NCCL. Its communicator does not block: every call is followed by polling
// with a deadline, so that a rank that is dead or late ends in an error and not in a hang, and the
// communicator is aborted rather than waited for.
#include "trireme/comm/device_group.hpp"

#include "trireme/base/error.hpp"

#include "comm/nccl/check.hpp"
#include "comm/nccl/unique_id.hpp"
#include "comm/unique_ids.hpp"
#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

namespace trireme::comm {

namespace {

constexpr std::chrono::seconds kGoodbye{5};
constexpr std::chrono::microseconds kNap{50};

std::string version_text() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(Communicator comm, int device) : DeviceGroup(std::move(comm)), device_(device) {}

  ~NcclGroup() override {
    if (comm_ == nullptr) return;
    // In order only if all ranks come here; whoever fails to has aborted or is dead.
    const Deadline deadline = Deadline::after(kGoodbye);
    ncclResult_t code = ncclCommFinalize(comm_);
    while (code == ncclInProgress && !deadline.expired()) {
      std::this_thread::sleep_for(kNap);
      if (ncclCommGetAsyncError(comm_, &code) != ncclSuccess) break;
    }
    if (code == ncclSuccess) {
      ncclCommDestroy(std::exchange(comm_, nullptr));
    } else {
      give_up();
    }
  }

  void open(const std::vector<ByteVector>& shared) {
    use();
    std::vector<ncclUniqueId> ids = as_nccl(shared);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const auto me = static_cast<int>(rank().value);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0)
    if (ids.size() > 1) {
      const ncclResult_t code = ncclCommInitRankScalable(
          &comm_, size(), me, static_cast<int>(ids.size()), ids.data(), &config);
      return settle(code, "ncclCommInitRankScalable");
    }
#endif
    settle(ncclCommInitRankConfig(&comm_, size(), ids[0], me, &config), "ncclCommInitRankConfig");
  }

  std::string describe() const override { return version_text(); }

  void progress() override {
    ensure(comm_ != nullptr, "an aborted device group is not used");
    ncclResult_t state = ncclSuccess;
    check_code(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    check_code(state, "an operation of NCCL");
  }

  void give_up() noexcept override {
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  }

 private:
  void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                     DeviceStream& stream) override {
    begin();
    finish(ncclAllGather(mine.data(), all.data(), mine.size(), ncclUint8, comm_, raw(stream)),
           "ncclAllGather");
  }

  void do_exchange(std::span<const std::span<const std::byte>> sends,
                   std::span<const std::span<std::byte>> receives, DeviceStream& stream) override {
    begin();
    check_code(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t first = ncclSuccess;
    const auto note = [&first](ncclResult_t code) {
      if (first == ncclSuccess && code != ncclInProgress) first = code;
    };
    for (int r = 0; r < size(); ++r) {
      const auto& out = sends[static_cast<std::size_t>(r)];
      const auto& in = receives[static_cast<std::size_t>(r)];
      if (!out.empty()) note(ncclSend(out.data(), out.size(), ncclUint8, r, comm_, raw(stream)));
      if (!in.empty()) note(ncclRecv(in.data(), in.size(), ncclUint8, r, comm_, raw(stream)));
    }
    // The group is ended whatever happened in it: an open one would swallow all later calls.
    const ncclResult_t end = ncclGroupEnd();
    finish(first != ncclSuccess ? first : end, "an exchange by ncclSend and ncclRecv");
  }

  void do_broadcast(std::span<std::byte> bytes, Rank root, DeviceStream& stream) override {
    begin();
    finish(ncclBroadcast(bytes.data(), bytes.data(), bytes.size(), ncclUint8,
                         static_cast<int>(root.value), comm_, raw(stream)),
           "ncclBroadcast");
  }

  static cudaStream_t raw(DeviceStream& stream) {
    return static_cast<cudaStream_t>(stream.native());
  }
  void use() const { comm::check(cudaSetDevice(device_), "cudaSetDevice"); }
  void begin() {
    ensure(comm_ != nullptr, "an aborted device group is not used");
    use();
  }
  void check_code(ncclResult_t code, std::string_view call) const {
    comm::check(code, call, comm_);
  }
  void finish(ncclResult_t code, std::string_view call) {
    try {
      settle(code, call);
    } catch (...) {
      give_up();
      throw;
    }
  }

  // Waits until the call that returned `code` has been accepted.
  void settle(ncclResult_t code, std::string_view call) {
    check_code(code, call);
    if (code != ncclInProgress) return;
    poll(call, [&] {
      check_code(ncclCommGetAsyncError(comm_, &code), "ncclCommGetAsyncError");
      check_code(code, call);
      return code != ncclInProgress;
    });
  }

  int device_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceGroup> make_gpu_group(Communicator& comm, int device_index) {
  // Before the others wait for a rank that has no GPU.
  comm.agree("a GPU for each rank", [&] { check(cudaSetDevice(device_index), "cudaSetDevice"); });
  require_alike(comm, "their NCCL", version_text());
  const std::vector<ByteVector> ids =
      share_ids(comm, kSeveralIds ? kRanksPerId : comm.size(), make_nccl_id);
  require_same_ids(comm, ids);
  auto group = std::make_unique<NcclGroup>(
      comm.split(0, static_cast<int>(comm.rank().value), "a device group"), device_index);
  comm.agree("NCCL", [&] {
    try {
      group->open(ids);
    } catch (...) {
      group->give_up();
      throw;
    }
  });
  return group;
}

}  // namespace trireme::comm
