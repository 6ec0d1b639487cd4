#include "parallel/touch_order.hpp"

#include <utility>

namespace trireme::parallel {

void TouchOrder::begin() {
  if (!seen_.empty()) known_ = std::move(seen_);
  seen_.clear();
  follows_ = !known_.empty();
}

void TouchOrder::touch(std::size_t unit) {
  if (!seen_.empty() && seen_.back() == unit) return;
  if (follows_ && (seen_.size() >= known_.size() || known_[seen_.size()] != unit)) {
    follows_ = false;
    has_changed_ = true;
  }
  seen_.push_back(unit);
}

std::size_t TouchOrder::distance(std::size_t unit) const {
  for (std::size_t i = seen_.size(); follows_ && i < known_.size(); ++i) {
    if (known_[i] == unit) return i - seen_.size();
  }
  return kNone;
}

}  // namespace trireme::parallel
