// One line on the terminal that says how far a long command is; silent everywhere else.
#pragma once

#include "trireme/base/units.hpp"

#include <chrono>
#include <string>

namespace trireme::app {

class ProgressLine {
 public:
  explicit ProgressLine(std::string verb);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Rewrites the line, a few times a second at most.
  void operator()(Bytes done, Bytes all);

 private:
  using Clock = std::chrono::steady_clock;

  std::string verb_;
  bool shown_;
  bool any_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace trireme::app
