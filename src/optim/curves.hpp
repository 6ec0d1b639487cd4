// The curves behind Schedule, one maker a type. A maker reads its options and returns functions of
// (base rate, step).
#pragma once

#include "trireme/optim/schedule.hpp"

#include "option_reader.hpp"

#include <functional>

namespace trireme::optim::detail {

struct Curve {
  std::function<double(double base, double step)> rate;
  std::function<Momentum(double step)> momentum = {};
};

using MakeCurve = Curve (*)(const ScheduleOptions&, OptionReader&);

// transformers
Curve constant(const ScheduleOptions& options, OptionReader& reader);
Curve linear(const ScheduleOptions& options, OptionReader& reader);
Curve cosine(const ScheduleOptions& options, OptionReader& reader);
Curve cosine_with_restarts(const ScheduleOptions& options, OptionReader& reader);
Curve polynomial(const ScheduleOptions& options, OptionReader& reader);
Curve inverse_sqrt(const ScheduleOptions& options, OptionReader& reader);
Curve cosine_with_min_lr(const ScheduleOptions& options, OptionReader& reader);
Curve cosine_warmup_with_min_lr(const ScheduleOptions& options, OptionReader& reader);
Curve warmup_stable_decay(const ScheduleOptions& options, OptionReader& reader);

// torch
Curve one_cycle(const ScheduleOptions& options, OptionReader& reader);

// DeepSpeed
Curve warmup_lr(const ScheduleOptions& options, OptionReader& reader);
Curve warmup_decay_lr(const ScheduleOptions& options, OptionReader& reader);
Curve warmup_cosine_lr(const ScheduleOptions& options, OptionReader& reader);
Curve deepspeed_one_cycle(const ScheduleOptions& options, OptionReader& reader);
Curve lr_range_test(const ScheduleOptions& options, OptionReader& reader);

}  // namespace trireme::optim::detail
