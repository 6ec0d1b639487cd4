// One wait for other ranks: how to pause, when to look after their health, whom to blame when it
// takes too long. Private to the room.
#pragma once

#include "trireme/base/deadline.hpp"

#include "node_group_impl.hpp"
#include "pause.hpp"

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace trireme::comm {

// A rank that is late may be waiting itself, for somebody on another node. Ranks that wait let a
// counter beat, so the one to blame is the late rank that does not; where there is none on this
// node, the others get a moment to speak first.
class Wait {
 public:
  Wait(const NodeGroup& group, NodeGroup::Impl& node, std::chrono::duration<double> timeout,
       std::string_view what);
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Pauses once. `late` returns the local ranks that have not arrived. Throws PeerLost or, past the
  // deadline, Timeout.
  void turn(const std::function<std::vector<int>()>& late);

 private:
  std::vector<int> silent(const std::vector<int>& late) const;
  [[noreturn]] void blame(const std::vector<int>& ranks) const;

  const NodeGroup& group_;
  NodeGroup::Impl& node_;
  std::chrono::duration<double> timeout_;
  std::string_view what_;
  Pause pause_;
  Deadline deadline_;
  std::optional<Deadline> listen_until_;
  std::optional<Deadline> grace_until_;
  std::vector<std::uint64_t> beats_;
};

}  // namespace trireme::comm
