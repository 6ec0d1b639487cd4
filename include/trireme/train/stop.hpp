// Why a run ends early: a signal, Ctrl-C, or the job's time limit. Only asks; the loop decides at
// the end of a step, on all ranks together.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme::train {

// Installs handlers while it lives. A second Ctrl-C ends the process at once, in the ordinary way.
class StopRequest {
 public:
  // `signals` as in stop.signals ("USR1", "TERM"); `deadline_unix`: the job's end, if known;
  // `lead`: seconds before it.
  StopRequest(const std::vector<std::string>& signals, std::optional<double> deadline_unix,
              double lead);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const;
  // Returns "signal TERM" or "the time limit in 95 s".
  std::string reason() const;

 private:
  std::optional<double> stop_at_;
  double deadline_ = 0;
  std::vector<int> installed_;
};

}  // namespace trireme::train
