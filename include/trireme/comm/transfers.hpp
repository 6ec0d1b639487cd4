// Point-to-point transfers of large buffers between nodes: shards of weights and partial sums of
// gradients.
#pragma once

#include "trireme/comm/communicator.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace trireme::comm {

// A batch of transfers in flight. The caller's buffers stay in place until wait() returns. Messages
// between two ranks are matched by `tag`; each goes out in pieces of at most 1 GiB, because MPI 3
// counts with int.
class Transfers {
 public:
  explicit Transfers(Communicator& comm);
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  void send(Rank to, int tag, std::span<const std::byte> bytes);
  void receive(Rank from, int tag, std::span<std::byte> bytes);
  // Lets them move on without waiting, and returns whether all have ended.
  bool done();
  // Waits for all of them, with the communicator's deadline; throws Timeout naming who is late.
  // `idle`, if given, is called while waiting: for work that others wait for meanwhile.
  void wait(std::string_view what, const std::function<void()>& idle = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::comm
