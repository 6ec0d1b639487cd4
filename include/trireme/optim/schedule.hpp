// The learning rate as a pure function of the step: nothing to save, nothing to get out of step on
// resume. (Schedules that look at a metric are in metric_schedule.hpp.)
//
// Steps count from 0 (the first update is step 0) and tick once per optimizer step, whatever the
// number of ranks; a skipped step does not tick. Types and options have the names of the originals:
//
//   transformers  constant (constant_with_warmup is the same: it warms up), linear, cosine,
//                 cosine_with_restarts, polynomial, inverse_sqrt, cosine_with_min_lr,
//                 cosine_warmup_with_min_lr, warmup_stable_decay
//   DeepSpeed     WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest
//   torch         one_cycle
//
// `warmup_steps`, `total_steps` and `min_ratio` are common names for what originals call
// num_warmup_steps, warmup_num_steps, total_num_steps, min_lr_rate, and so on. Two things differ
// from the originals unless `hold` is false or min_ratio 0: behind total_steps a cosine stays where
// it is (transformers' rises again), and linear falls to min_ratio, not to 0. What an original takes
// for something else with a warning (an unknown warmup_type) is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::optim {

struct ScheduleOptions {
  std::string type = "cosine";
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  // the horizon, where the type has one
  double min_ratio = 0;          // of the base rate, reached at the horizon
  double base_lr = 1;            // the optimizer's rate: what absolute rates are relative to
  bool hold = true;              // behind the horizon the rate stays
  // Further options of the type, such as {"num_cycles", "2"}.
  std::map<std::string, std::string> options = {};
};

// Momentum, or the betas, that a cyclic schedule prescribes.
struct Momentum {
  double beta1 = 0;
  std::optional<double> beta2 = {};
};

class Schedule {
 public:
  // Throws Config, with all problems.
  explicit Schedule(const ScheduleOptions& options);

  // Returns the rate for update number `step` of a group whose base rate is `base`.
  double rate(double base, std::int64_t step) const;
  // Nothing where the type leaves momentum alone.
  std::optional<Momentum> momentum(std::int64_t step) const;

 private:
  std::function<double(double, double)> rate_;
  std::function<Momentum(double)> momentum_;
};

// Returns every type, metric schedules included.
const std::vector<std::string>& schedule_types();
// Whether a type looks at warmup_steps, total_steps, min_ratio.
struct ScheduleTraits {
  bool warmup = false;
  bool total = false;
  bool min_ratio = false;
};
ScheduleTraits schedule_traits(const std::string& type);

}  // namespace trireme::optim
