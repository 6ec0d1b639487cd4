// A point in time after which a wait is an error. Every wait in the project takes one.
#pragma once

#include <chrono>

namespace trireme {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  static Deadline after(std::chrono::duration<double> wait) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(wait));
  }
  bool expired() const { return Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace trireme
