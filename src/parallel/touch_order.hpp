// The order in which operators touch units, remembered from the first pass to know in the next ones
// what comes. Pure arithmetic. Private to the room.
#pragma once

#include <cstddef>
#include <vector>

namespace trireme::parallel {

class TouchOrder {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // A new pass: follows what the last one recorded.
  void begin();
  // An operator touches a unit. Repeated touches of one unit count once.
  void touch(std::size_t unit);

  // Whether touches so far were as remembered.
  bool follows() const { return follows_; }
  // Whether a pass ever went another way than the one before.
  bool has_changed() const { return has_changed_; }
  // Returns the first unit to come for which `present(unit)` is false; kNone when there is none.
  template <class Present>
  std::size_t next_absent(const Present& present) const {
    for (std::size_t i = seen_.size(); follows_ && i < known_.size(); ++i) {
      if (!present(known_[i])) return known_[i];
    }
    return kNone;
  }
  // Number of touches until `unit` is next touched; kNone when it is not.
  std::size_t distance(std::size_t unit) const;

 private:
  std::vector<std::size_t> known_;
  std::vector<std::size_t> seen_;  // of this pass
  bool follows_ = false;
  bool has_changed_ = false;
};

}  // namespace trireme::parallel
