// The ranks that share this node's memory: who they are, whether they live, where they are, and
// segments of memory that all of them see. Waiting here is polling of flags in shared memory, with
// a deadline, and a dead or late rank is named.
#pragma once

#include "trireme/base/deadline.hpp"
#include "trireme/base/units.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

// One segment per local rank, each visible to all of them. Pages are touched once by their owner,
// so that no page fault falls into a step.
class SharedSegments {
 public:
  struct Impl;
  explicit SharedSegments(std::unique_ptr<Impl> impl);
  SharedSegments(SharedSegments&&) noexcept;
  SharedSegments& operator=(SharedSegments&&) noexcept;
  ~SharedSegments();

  // Returns the memory that local rank `local` contributed; page-aligned, zeroed when made.
  std::span<std::byte> of(int local) const;

 private:
  std::unique_ptr<Impl> impl_;
};

class NodeGroup {
 public:
  struct Impl;
  explicit NodeGroup(std::unique_ptr<Impl> impl);
  NodeGroup(NodeGroup&&) noexcept;
  ~NodeGroup();

  int local_rank() const;
  int size() const;
  // Returns the world rank of a local rank.
  Rank world_rank(int local) const;

  // @collective on the node. Every rank contributes `mine` bytes (0 is allowed).
  SharedSegments allocate(std::size_t mine);

  // @collective on the node. Flags in memory; nothing is sent. `idle`, if given, is called while
  // waiting.
  void barrier(std::string_view what, const std::function<void()>& idle = {});

  // Waits until `arrived(local)` holds for every local rank. Throws Timeout or PeerLost naming
  // those that are missing, where they were last, and what was waited for. `idle`, if given, is
  // called while waiting.
  void wait_for_all(const std::function<bool(int)>& arrived, std::string_view what,
                    const std::function<void()>& idle = {});

  // Publishes where this rank is ("forward", step 12) for the messages of others. Cheap: two
  // stores.
  void set_place(const char* place, std::int64_t step);

  // Throws PeerLost naming a local rank whose process has ended. Cheap enough for every 100 ms.
  void check_alive(std::string_view what) const;

  // Returns "rank 3 (pid 812) in 'backward' at step 12" for each rank.
  std::string describe(int local) const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::comm
