// Schedules that follow a metric, here the evaluation loss: torch's ReduceLROnPlateau
// (reduce_lr_on_plateau) and transformers' GreedyLR (greedy), with their options and names. Unlike
// a Schedule they have state, which is part of a checkpoint.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace trireme::optim {

struct MetricScheduleOptions {
  std::string type = "reduce_lr_on_plateau";  // or greedy
  std::map<std::string, std::string> options = {};
  std::vector<double> bases;  // rates of the groups, from which they start
  // By group, where they differ; otherwise options.min_lr holds for all.
  std::vector<double> min_lrs = {};
};

class MetricSchedule {
 public:
  static bool is(const std::string& type) {
    return type == "reduce_lr_on_plateau" || type == "greedy";
  }

  // Throws Config, with all problems.
  explicit MetricSchedule(const MetricScheduleOptions& options);

  // Sees a measurement, and moves the rates where it is time.
  void observe(double metric);

  const std::vector<double>& rates() const { return state_.rates; }
  // Returns the rate of the groups that started from `base`.
  double rate(double base) const;
  std::int64_t num_bad() const { return state_.bad; }

  // JSON that holds every double exactly. restore() throws Corrupt for a text that is none, Config
  // for the state of another number of groups.
  std::string state() const;
  void restore(const std::string& text);

 private:
  // What a checkpoint keeps.
  struct State {
    std::vector<double> rates;
    double best = 0;
    std::int64_t bad = 0;
    std::int64_t good = 0;
    std::int64_t cooldown = 0;  // measurements still to pass over
    std::int64_t warmup = 0;
    std::int64_t reset = 0;     // times at the least rate until all starts again
    std::deque<double> window;  // of smooth
    double window_sum = 0;
  };

  State initial() const;
  bool better(double metric) const;
  double smoothed(double metric);
  void observe_plateau(double metric);
  void observe_greedy(double metric);
  bool lower();  // whether all are at their least rate
  void raise();

  std::vector<double> bases_;
  std::vector<double> min_lrs_;
  bool greedy_ = false;
  bool largest_is_best_ = false;
  bool relative_ = true;
  bool smooth_ = false;
  double factor_ = 0;
  double threshold_ = 0;
  double max_lr_ = 0;
  double eps_ = 0;
  std::int64_t patience_ = 0;
  std::int64_t cooldown_ = 0;
  std::int64_t warmup_ = 0;
  std::int64_t window_size_ = 0;
  std::int64_t reset_start_ = 0;
  State state_;
};

}  // namespace trireme::optim
