// A device group over host memory and MPI: the operations of the GPU's group, by messages between
// all pairs of ranks. For tests of what stands above it.
//
// A stream's thread may not use MPI. It says that its operation's turn has come, and waits; the
// thread that owns the group does the transfers whenever it waits or calls progress().
#include "trireme/comm/device_group.hpp"

#include "trireme/base/error.hpp"
#include "trireme/comm/transfers.hpp"

#include "comm/unique_ids.hpp"
#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace trireme::comm {

namespace {

constexpr int kTag = 0;  // messages between two ranks arrive in the order in which they are sent

struct Exchange {
  std::vector<std::span<const std::byte>> sends;
  std::vector<std::span<std::byte>> receives;
};

// What a stream's thread and the group's owner tell each other about one operation.
class Turn {
 public:
  // The stream has come to the operation; returns when it is done, throws when the group is aborted.
  void come() {
    std::unique_lock lock(mutex_);
    come_ = true;
    changed_.wait(lock, [&] { return done_ || aborted_; });
    if (!done_) throw Error(ErrorKind::kDevice, "the device group has been aborted");
  }
  bool has_come() const {
    const std::scoped_lock lock(mutex_);
    return come_;
  }
  void end(bool done) {
    const std::scoped_lock lock(mutex_);
    (done ? done_ : aborted_) = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool come_ = false;
  bool done_ = false;
  bool aborted_ = false;
};

struct Operation {
  Exchange work;
  std::shared_ptr<Turn> turn;  // shared with the stream, which may outlive the group
  std::shared_ptr<DeviceEvent> end;
};

class HostGroup final : public DeviceGroup {
 public:
  explicit HostGroup(Communicator comm) : DeviceGroup(std::move(comm)) {}
  ~HostGroup() override { give_up(); }

  std::string describe() const override { return "host"; }

  void progress() override {
    ensure(!aborted_, "an aborted device group is not used");
    while (!operations_.empty()) {
      const Operation& first = operations_.front();
      if (!transfers_) {
        if (!first.turn->has_come()) return first.end->push();
        start(first.work);
      }
      if (!transfers_->done()) return;
      transfers_.reset();
      first.turn->end(/*done=*/true);
      operations_.pop_front();
    }
  }

  void give_up() noexcept override {
    aborted_ = true;
    transfers_.reset();
    for (const Operation& operation : operations_) operation.turn->end(/*done=*/false);
    operations_.clear();
  }

 private:
  void do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                     DeviceStream& stream) override {
    Exchange work{std::vector(ranks(), mine), {}};
    for (std::size_t r = 0; r < ranks(); ++r)
      work.receives.push_back(all.subspan(r * mine.size(), mine.size()));
    queue(std::move(work), stream);
  }

  void do_exchange(std::span<const std::span<const std::byte>> sends,
                   std::span<const std::span<std::byte>> receives, DeviceStream& stream) override {
    queue({{sends.begin(), sends.end()}, {receives.begin(), receives.end()}}, stream);
  }

  void do_broadcast(std::span<std::byte> bytes, Rank root, DeviceStream& stream) override {
    Exchange work{std::vector<std::span<const std::byte>>(ranks()),
                  std::vector<std::span<std::byte>>(ranks())};
    if (rank() == root) {
      work.sends.assign(ranks(), bytes);
    }
    work.receives[static_cast<std::size_t>(root.value)] = bytes;
    queue(std::move(work), stream);
  }

  void queue(Exchange work, DeviceStream& stream) {
    ensure(!aborted_, "an aborted device group is not used");
    ensure(stream.native() == nullptr, "the host's group works on the host's streams");
    auto turn = std::make_shared<Turn>();
    stream.run([turn] { turn->come(); });
    operations_.push_back({std::move(work), std::move(turn), stream.record()});
  }

  void start(const Exchange& work) {
    const auto me = static_cast<std::size_t>(rank().value);
    transfers_.emplace(comm());
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (r != me) transfers_->receive(Rank(static_cast<std::int64_t>(r)), kTag, work.receives[r]);
    }
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (r != me) transfers_->send(Rank(static_cast<std::int64_t>(r)), kTag, work.sends[r]);
    }
    const std::span<std::byte> own = work.receives[me];
    if (!own.empty()) std::memmove(own.data(), work.sends[me].data(), own.size());
  }

  std::deque<Operation> operations_;    // carried out in this order, whatever their streams
  std::optional<Transfers> transfers_;  // of the first operation
  bool aborted_ = false;
};

ByteVector random_id() {
  std::random_device source;
  ByteVector id(128);
  for (std::byte& byte : id) byte = static_cast<std::byte>(source());
  return id;
}

}  // namespace

std::unique_ptr<DeviceGroup> make_host_group(Communicator& comm) {
  require_same_ids(comm, share_ids(comm, kRanksPerId, random_id));
  return std::make_unique<HostGroup>(
      comm.split(0, static_cast<int>(comm.rank().value), "a device group"));
}

}  // namespace trireme::comm
