#include "trireme/optim/schedule.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

namespace trireme::optim {

namespace {

// In the order of Schedule::Shape.
const std::array<std::string, 3> kTypes{"constant", "linear", "cosine"};

std::string unknown_type(const std::string& type) {
  const auto suggestion = nearest(type, kTypes);
  return fmt::format("unknown schedule '{}'; {}", type,
                     suggestion ? fmt::format("did you mean '{}'", *suggestion)
                                : fmt::format("there are {}", fmt::join(kTypes, ", ")));
}

std::vector<std::string> problems_of(const ScheduleOptions& options) {
  std::vector<std::string> problems;
  if (std::ranges::find(kTypes, options.type) == kTypes.end()) {
    problems.push_back(unknown_type(options.type));
  }
  if (options.warmup_steps < 0) {
    problems.push_back(fmt::format("warmup_steps {} is negative", options.warmup_steps));
  }
  if (options.total_steps < (options.type == kTypes[0] ? 0 : 1)) {
    problems.push_back(fmt::format("total_steps {} is no horizon", options.total_steps));
  }
  if (!(options.min_ratio >= 0 && options.min_ratio <= 1)) {
    problems.push_back(fmt::format("min_ratio {} is not in [0, 1]", options.min_ratio));
  }
  return problems;
}

}  // namespace

Schedule::Schedule(const ScheduleOptions& options)
    : warmup_(static_cast<double>(options.warmup_steps)),
      total_(static_cast<double>(options.total_steps)),
      min_ratio_(options.min_ratio) {
  const std::vector<std::string> problems = problems_of(options);
  if (!problems.empty()) {
    throw Error(ErrorKind::kConfig, fmt::format("schedule: {}", fmt::join(problems, "; ")));
  }
  shape_ = static_cast<Shape>(std::ranges::find(kTypes, options.type) - kTypes.begin());
}

double Schedule::factor(std::int64_t step) const {
  ensure(step >= 0, "steps count from 0");
  const auto at = static_cast<double>(step);
  return at < warmup_ ? at / warmup_ : after_warmup(at);
}

double Schedule::after_warmup(double step) const {
  const double length = std::max(1.0, total_ - warmup_);
  double falling = 1;  // from 1 at the end of the warm-up to 0 at the horizon
  switch (shape_) {
    case Shape::kConstant:
      return 1;
    case Shape::kLinear:
      falling = std::max(0.0, (total_ - step) / length);
      break;
    case Shape::kCosine: {
      const double progress = std::min(1.0, (step - warmup_) / length);
      falling = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    }
  }
  return min_ratio_ + (1 - min_ratio_) * falling;
}

}  // namespace trireme::optim
