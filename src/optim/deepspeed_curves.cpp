// DeepSpeed's schedules (runtime/lr_schedules.py). What it calls last_batch_iteration is our step
// less one: it sets the first rate at construction and ticks before the second.
#include "curves.hpp"

#include <array>
#include <cmath>
#include <numbers>

namespace trireme::optim::detail {

namespace {

const std::array<std::string, 2> kRises{"log", "linear"};

// Where rates are absolute, a group still has its part: its base rate over the optimizer's.
struct Share {
  explicit Share(const ScheduleOptions& options) : base_lr(options.base_lr) {}
  double operator()(double base) const { return base / base_lr; }
  double base_lr;
};

// Rises from 0 to 1 over the warm-up, by logarithm unless told.
struct Warmup {
  Warmup(const ScheduleOptions& options, OptionReader& reader)
      : steps(static_cast<double>(std::max<std::int64_t>(2, options.warmup_steps))),
        logarithmic(reader.word("warmup_type", kRises) == "log") {
    reader.refuse(options.warmup_steps < 1, "warmup_steps: must be at least 1 for this type");
  }

  double operator()(double last) const {
    return logarithmic ? 1.0 / std::log(steps) * std::log(last + 1) : last / steps;
  }

  double steps;
  bool logarithmic;
};

// After the warm-up, `later(last, warmup_steps)` of the way from the least to the largest rate.
template <class Later>
Curve between_rates(const ScheduleOptions& options, OptionReader& reader,
                    std::optional<double> max_otherwise, Later later) {
  const Warmup warmup(options, reader);
  const double least = reader.number("warmup_min_lr", 0);
  auto largest = reader.number("warmup_max_lr");
  if (!largest) largest = max_otherwise;
  return {[=, share = Share(options)](double base, double step) {
    const double last = step - 1;
    const double part = last < 0              ? 0
                        : last < warmup.steps ? warmup(last)
                                              : later(last, warmup.steps);
    if (!largest) return least + (base - least) * part;
    return share(base) * (least + (*largest - least) * part);
  }};
}

}  // namespace

Curve warmup_lr(const ScheduleOptions& options, OptionReader& reader) {
  return between_rates(options, reader, std::nullopt, [](double, double) { return 1.0; });
}

Curve warmup_decay_lr(const ScheduleOptions& options, OptionReader& reader) {
  const auto total = static_cast<double>(options.total_steps);
  return between_rates(options, reader, 0.001, [total](double last, double warmup) {
    return std::max(0.0, (total - last) / std::max(1.0, total - warmup));
  });
}

Curve warmup_cosine_lr(const ScheduleOptions& options, OptionReader& reader) {
  const Warmup warmup(options, reader);
  const auto total = static_cast<double>(options.total_steps);
  const double first = reader.number("warmup_min_ratio", 0);
  const double least = reader.number("cos_min_ratio", 0.0001);
  return {[=](double base, double step) {
    const double last = step - 1;
    if (last < 0) return 0.0;
    if (last < warmup.steps) return base * (first + warmup(last) * (1 - first));
    const double progress =
        std::min(1.0, (last - warmup.steps + 1) / std::max(1.0, total - warmup.steps));
    const double ratio = (1 + std::cos(std::numbers::pi * progress)) / 2;
    return base * std::max(0.0, least + (1 - least) * ratio);
  }};
}

Curve deepspeed_one_cycle(const ScheduleOptions& options, OptionReader& reader) {
  const double least = reader.number("cycle_min_lr", 0);
  const double largest = reader.number("cycle_max_lr", options.base_lr);
  const double first = reader.positive("cycle_first_step_size", 2000);
  const double second = reader.number("cycle_second_step_size", first);
  reader.refuse(second < 0, "options.cycle_second_step_size: must not be negative");
  const double first_stairs = reader.number("cycle_first_stair_count", 0);
  const double second_stairs = reader.number("cycle_second_stair_count", first_stairs);
  const double decay_steps = reader.number("decay_step_size", 0);
  const double lr_rate = reader.number("decay_lr_rate", 0);
  const double mom_rate = reader.number("decay_mom_rate", 0);
  reader.refuse(
      decay_steps == 0 && (lr_rate != 0 || mom_rate != 0),
      "options.decay_step_size: without it decay_lr_rate and decay_mom_rate have no effect");
  const double lr_decay = decay_steps == 0 ? 0 : lr_rate / decay_steps;
  const double mom_decay = decay_steps == 0 ? 0 : mom_rate / decay_steps;
  const bool cycles_momentum = reader.flag("cycle_momentum", true);
  const double low = reader.number("cycle_min_mom", 0.8);
  const double high = reader.number("cycle_max_mom", 0.9);
  const double total = first + second;

  // Where between least and largest an iteration of the cycle is.
  const auto height = [=](double iteration) {
    const double cycle = std::floor(1 + iteration / total);
    const double x = 1 + iteration / total - cycle;
    const double ratio = first / total;
    const bool rises = x <= ratio;
    const double stairs = rises ? first_stairs : second_stairs;
    if (stairs <= 0) return rises ? x / ratio : (x - 1) / (ratio - 1);
    const double within = std::fmod(iteration, total);
    const double position =
        within <= first ? within * stairs / first : (total - within) * stairs / second;
    return std::floor(position) / stairs;
  };
  Curve curve;
  const auto absolute = [=](double step) {
    if (step == 0) return least;
    const double last = step - 1;
    if (last < total) return least + (largest - least) * height(last + 1);
    return least / (1 + lr_decay * (last - total + 1));
  };
  curve.rate = [absolute, share = Share(options)](double base, double step) {
    return share(base) * absolute(step);
  };
  if (cycles_momentum) {
    curve.momentum = [=](double step) {
      if (step == 0) return Momentum{low, 0.99};
      const double last = step - 1;
      if (last < total) return Momentum{high - (high - low) * height(last + 1), 0.99};
      return Momentum{high * (1 + mom_decay * (last - total + 1)), 0.99};
    };
  }
  return curve;
}

Curve lr_range_test(const ScheduleOptions& options, OptionReader& reader) {
  const double least = reader.number("lr_range_test_min_lr", 1e-3);
  const double size = reader.positive("lr_range_test_step_size", 2000);
  const double rate = reader.number("lr_range_test_step_rate", 1);
  const bool staircase = reader.flag("lr_range_test_staircase", false);
  return {[=, share = Share(options)](double base, double step) {
    const double interval = staircase ? std::floor(step / size) : step / size;
    return share(base) * (least * (1 + rate * interval));
  }};
}

}  // namespace trireme::optim::detail
