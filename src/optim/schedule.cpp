#include "trireme/optim/schedule.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include "curves.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace trireme::optim {

namespace {

struct Type {
  std::string name;
  ScheduleTraits traits;
  detail::MakeCurve make = nullptr;  // none for metric schedules
};

const std::vector<Type>& types() {
  constexpr ScheduleTraits kWarmup{.warmup = true};
  constexpr ScheduleTraits kTotal{.warmup = true, .total = true};
  constexpr ScheduleTraits kAll{.warmup = true, .total = true, .min_ratio = true};
  static const std::vector<Type> table{
      {"constant", kWarmup, detail::constant},
      {"constant_with_warmup", kWarmup, detail::constant},
      {"linear", kAll, detail::linear},
      {"cosine", kAll, detail::cosine},
      {"cosine_with_restarts", kTotal, detail::cosine_with_restarts},
      {"polynomial", kTotal, detail::polynomial},
      {"inverse_sqrt", kWarmup, detail::inverse_sqrt},
      {"cosine_with_min_lr", kAll, detail::cosine_with_min_lr},
      {"cosine_warmup_with_min_lr", kAll, detail::cosine_warmup_with_min_lr},
      {"warmup_stable_decay", {.warmup = true, .min_ratio = true}, detail::warmup_stable_decay},
      {"one_cycle", {.total = true}, detail::one_cycle},
      {"reduce_lr_on_plateau", {}},
      {"greedy", {}},
      {"WarmupLR", kWarmup, detail::warmup_lr},
      {"WarmupDecayLR", kTotal, detail::warmup_decay_lr},
      {"WarmupCosineLR", kTotal, detail::warmup_cosine_lr},
      {"OneCycle", {}, detail::deepspeed_one_cycle},
      {"LRRangeTest", {}, detail::lr_range_test},
  };
  return table;
}

const Type* find_type(const std::string& name) {
  const auto found = std::ranges::find(types(), name, &Type::name);
  return found == types().end() ? nullptr : &*found;
}

[[noreturn]] void throw_unknown(const std::string& name) {
  const auto near = nearest(name, schedule_types());
  throw Error(ErrorKind::kConfig,
              fmt::format("schedule.type: unknown schedule '{}'; {}", name,
                          near ? fmt::format("did you mean '{}'", *near)
                               : fmt::format("there are {}", fmt::join(schedule_types(), ", "))));
}

void refuse_sizes(const ScheduleOptions& options, const ScheduleTraits& traits,
                  detail::OptionReader& reader) {
  reader.refuse(options.warmup_steps < 0,
                fmt::format("warmup_steps: {} is negative", options.warmup_steps));
  reader.refuse(options.total_steps < (traits.total ? 1 : 0),
                fmt::format("total_steps: {} is no horizon", options.total_steps));
  reader.refuse(!(options.min_ratio >= 0 && options.min_ratio <= 1),
                fmt::format("min_lr_ratio: {} is not in [0, 1]", options.min_ratio));
  reader.refuse(!(options.base_lr > 0), "the base rate must be above 0");
}

}  // namespace

Schedule::Schedule(const ScheduleOptions& options) {
  const Type* const type = find_type(options.type);
  if (type == nullptr) throw_unknown(options.type);
  ensure(type->make != nullptr, "schedules that look at a metric are a MetricSchedule");
  detail::OptionReader reader(options.type, options.options);
  refuse_sizes(options, type->traits, reader);
  detail::Curve curve = type->make(options, reader);
  reader.finish();
  rate_ = std::move(curve.rate);
  momentum_ = std::move(curve.momentum);
}

double Schedule::rate(double base, std::int64_t step) const {
  ensure(step >= 0, "steps count from 0");
  return rate_(base, static_cast<double>(step));
}

std::optional<Momentum> Schedule::momentum(std::int64_t step) const {
  if (!momentum_) return std::nullopt;
  return momentum_(static_cast<double>(step));
}

const std::vector<std::string>& schedule_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Type& type : types()) all.push_back(type.name);
    return all;
  }();
  return names;
}

ScheduleTraits schedule_traits(const std::string& type) {
  const Type* const found = find_type(type);
  if (found == nullptr) throw_unknown(type);
  return found->traits;
}

}  // namespace trireme::optim
