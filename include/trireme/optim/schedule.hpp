// The learning rate's multiplier as a pure function of the step: nothing to save, nothing to get
// out of step on resume.
//
// Steps count from 0 (the first update is step 0). With w = warmup_steps, T = total_steps and
// r = min_ratio, the factor of step s is
//   s < w     s / w    (0 at the first step, as in transformers)
//   constant  1
//   linear    r + (1 - r) max(0, (T - s) / max(1, T - w))
//   cosine    r + (1 - r) (1 + cos(pi p)) / 2,  p = min(1, (s - w) / max(1, T - w))
// With r = 0 these are transformers' get_constant_schedule_with_warmup,
// get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup; with r > 0 the cosine is its
// cosine_with_min_lr (min_lr_rate = r). One thing differs: behind T the cosine stays at r, where
// transformers' rises again. The warm-up starts at 0 whatever r is.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::optim {

struct ScheduleOptions {
  std::string type = "cosine";    // constant | linear | cosine
  std::int64_t warmup_steps = 0;  // for every type
  std::int64_t total_steps = 0;   // the horizon; constant needs none
  double min_ratio = 0;           // of the base rate, reached at the horizon; constant has none
};

class Schedule {
 public:
  // Throws Config, with all problems, for an unknown type, negative steps, no horizon where one is
  // needed, and a ratio outside [0, 1]. A warm-up longer than the horizon is allowed: linear then
  // ends at r, cosine falls to r in one step.
  explicit Schedule(const ScheduleOptions& options);

  // Returns the factor for update number `step`, in [0, 1].
  double factor(std::int64_t step) const;

 private:
  enum class Shape { kConstant, kLinear, kCosine };

  double after_warmup(double step) const;

  Shape shape_ = Shape::kConstant;
  double warmup_;
  double total_;
  double min_ratio_;
};

}  // namespace trireme::optim
