#include "wait.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

namespace trireme::comm {

namespace {

// Far above the pauses of a waiting rank, even on a busy machine.
constexpr std::chrono::duration<double> kListen{0.5};
// For the node that holds the culprit to name it.
constexpr std::chrono::duration<double> kGrace{2.5};

}  // namespace

Wait::Wait(const NodeGroup& group, NodeGroup::Impl& node, std::chrono::duration<double> timeout,
           std::string_view what)
    : group_(group),
      node_(node),
      timeout_(timeout),
      what_(what),
      deadline_(Deadline::after(timeout)) {
  node_.status(node_.rank).waits.fetch_add(1, std::memory_order_relaxed);
}

Wait::~Wait() { node_.status(node_.rank).waits.fetch_sub(1, std::memory_order_relaxed); }

void Wait::turn(const std::function<std::vector<int>()>& late) {
  node_.status(node_.rank).beats.fetch_add(1, std::memory_order_relaxed);
  pause_();
  if (!pause_.time_to_check()) return;
  group_.check_alive(what_);
  if (!deadline_.expired()) return;
  if (!listen_until_) {
    for (int local = 0; local < node_.size; ++local) {
      beats_.push_back(node_.status(local).beats.load(std::memory_order_relaxed));
    }
    listen_until_ = Deadline::after(kListen);
    grace_until_ = Deadline::after(kListen + kGrace);
  }
  if (!listen_until_->expired()) return;
  const std::vector<int> suspects = late();
  const std::vector<int> culprits = silent(suspects);
  if (!culprits.empty()) blame(culprits);
  if (grace_until_->expired()) blame(suspects);
}

// A rank whose counter stands still: a late one, or one that stopped inside a wait of its own.
std::vector<int> Wait::silent(const std::vector<int>& late) const {
  std::vector<int> result;
  for (int local = 0; local < node_.size; ++local) {
    const RankStatus& status = node_.status(local);
    const bool beats =
        status.beats.load(std::memory_order_relaxed) != beats_[static_cast<std::size_t>(local)];
    const bool is_late = std::find(late.begin(), late.end(), local) != late.end();
    const bool waits = status.waits.load(std::memory_order_relaxed) > 0;
    if (local != node_.rank && !beats && (is_late || waits)) result.push_back(local);
  }
  return result;
}

void Wait::blame(const std::vector<int>& ranks) const {
  std::vector<std::string> names;
  for (const int local : ranks) names.push_back(group_.describe(local));
  if (names.empty()) names.emplace_back("a rank on another node");
  throw Error(
      ErrorKind::kTimeout,
      fmt::format("waited {:g} s in '{}' for {}", timeout_.count(), what_, fmt::join(names, ", ")),
      "a rank that is stopped, swapping or stuck shows in `top` on its node; run.timeout sets how "
      "long to wait");
}

}  // namespace trireme::comm
