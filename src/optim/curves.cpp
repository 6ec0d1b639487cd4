// transformers' schedules (optimization.py) and torch's OneCycleLR.
#include "curves.hpp"

#include <array>
#include <cmath>
#include <numbers>

namespace trireme::optim::detail {

namespace {

using std::numbers::pi;

double as_double(std::int64_t steps) { return static_cast<double>(steps); }

// What a curve does after a linear warm-up from 0, as a factor of the base rate.
template <class After>
Curve after_warmup(const ScheduleOptions& options, After after) {
  const double warmup = as_double(options.warmup_steps);
  return {[warmup, after](double base, double step) {
    return base * (step < warmup ? step / warmup : after(step));
  }};
}

// How far between the end of the warm-up and the horizon, from 0 to 1 and, without hold, beyond.
struct Progress {
  explicit Progress(const ScheduleOptions& options)
      : warmup(as_double(options.warmup_steps)),
        length(std::max(1.0, as_double(options.total_steps) - warmup)),
        hold(options.hold) {}

  double operator()(double step) const {
    const double progress = (step - warmup) / length;
    return hold ? std::min(1.0, progress) : progress;
  }

  double warmup;
  double length;
  bool hold;
};

double wave(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(pi * cycles * 2.0 * progress));
}

double lifted(double factor, double least) { return std::max(0.0, factor * (1.0 - least) + least); }

// An absolute least rate where one is given, otherwise the ratio.
double least_ratio(const ScheduleOptions& options, OptionReader& reader) {
  const auto min_lr = reader.number("min_lr");
  return min_lr ? *min_lr / options.base_lr : options.min_ratio;
}

Curve lifted_cosine(const ScheduleOptions& options, OptionReader& reader, double least) {
  const double cycles = reader.positive("num_cycles", 0.5);
  return after_warmup(options, [cycles, least, progress = Progress(options)](double step) {
    return lifted(wave(cycles, progress(step)), least);
  });
}

const std::array<std::string, 3> kWarmups{"linear", "cosine", "1-sqrt"};
const std::array<std::string, 3> kDecays{"cosine", "linear", "1-sqrt"};
const std::array<std::string, 2> kAnnealings{"cos", "linear"};

double rising(const std::string& type, double progress) {
  if (type == "linear") return progress;
  if (type == "cosine") return 0.5 * (1.0 - std::cos(pi * progress));
  return 1.0 - std::sqrt(1.0 - progress);
}

double falling(const std::string& type, double cycles, double progress) {
  if (type == "linear") return 1.0 - progress;
  if (type == "cosine") return wave(cycles, progress);
  return 1.0 - std::sqrt(progress);
}

// A stretch of torch's one cycle; heights are multiples of the largest rate.
struct Phase {
  double end;
  double from, to;
  double momentum_from, momentum_to;
};

}  // namespace

Curve constant(const ScheduleOptions& options, OptionReader& /*reader*/) {
  return after_warmup(options, [](double) { return 1.0; });
}

Curve linear(const ScheduleOptions& options, OptionReader& /*reader*/) {
  const double total = as_double(options.total_steps);
  const double length = std::max(1.0, total - as_double(options.warmup_steps));
  return after_warmup(options, [total, length, least = options.min_ratio](double step) {
    return lifted(std::max(0.0, (total - step) / length), least);
  });
}

Curve cosine(const ScheduleOptions& options, OptionReader& reader) {
  return lifted_cosine(options, reader, options.min_ratio);
}

Curve cosine_with_min_lr(const ScheduleOptions& options, OptionReader& reader) {
  return lifted_cosine(options, reader, least_ratio(options, reader));
}

Curve cosine_with_restarts(const ScheduleOptions& options, OptionReader& reader) {
  const double cycles = reader.positive("num_cycles", 1);
  ScheduleOptions unheld = options;
  unheld.hold = false;
  return after_warmup(options, [cycles, progress = Progress(unheld)](double step) {
    const double at = progress(step);
    return at >= 1 ? 0.0 : std::max(0.0, 0.5 * (1.0 + std::cos(pi * std::fmod(cycles * at, 1.0))));
  });
}

Curve polynomial(const ScheduleOptions& options, OptionReader& reader) {
  const double power = reader.number("power", 1.0);
  const double end = reader.number("lr_end", 1e-7);
  const double initial = options.base_lr;
  reader.refuse(!(initial > end), "options.lr_end: must be below optimizer.lr");
  const double warmup = as_double(options.warmup_steps);
  const double total = as_double(options.total_steps);
  return after_warmup(options, [=](double step) {
    if (step >= total) return end / initial;
    const double left = 1 - (step - warmup) / (total - warmup);
    return ((initial - end) * std::pow(left, power) + end) / initial;
  });
}

Curve inverse_sqrt(const ScheduleOptions& options, OptionReader& reader) {
  const double warmup = as_double(options.warmup_steps);
  const double timescale = reader.positive("timescale", warmup > 0 ? warmup : 10'000);
  return after_warmup(options, [=](double step) {
    return 1.0 / std::sqrt((step + timescale - warmup) / timescale);
  });
}

// Starts at 1 / warmup or at a ratio, never at 0, and is one step ahead of cosine_with_min_lr.
Curve cosine_warmup_with_min_lr(const ScheduleOptions& options, OptionReader& reader) {
  const double warmup = as_double(options.warmup_steps);
  const double least = least_ratio(options, reader);
  const double cycles = reader.positive("num_cycles", 0.5);
  const auto first = reader.number("warmup_lr_rate");
  return {[=, progress = Progress(options)](double base, double step) {
    if (step >= warmup) return base * lifted(wave(cycles, progress(step + 1)), least);
    if (!first) return base * ((step + 1) / std::max(1.0, warmup));
    return base * (*first + (1 - *first) * step / std::max(1.0, warmup - 1));
  }};
}

Curve warmup_stable_decay(const ScheduleOptions& options, OptionReader& reader) {
  const double warmup = as_double(options.warmup_steps);
  const double decay = reader.number("num_decay_steps", 0.1 * as_double(options.total_steps));
  const auto stable_steps = reader.number("num_stable_steps");
  reader.refuse(!stable_steps && options.total_steps < 1,
                "total_steps: needed, or options.num_stable_steps");
  const double stable = stable_steps.value_or(as_double(options.total_steps) - warmup - decay);
  const std::string up = reader.word("warmup_type", kWarmups);
  const std::string down = reader.word("decay_type", kDecays);
  const double cycles = reader.positive("num_cycles", 0.5);
  const double least = options.min_ratio;
  return {[=](double base, double step) {
    if (step < warmup) return base * lifted(rising(up, step / warmup), least);
    if (step < warmup + stable) return base;
    if (step >= warmup + stable + decay) return base * least;
    const double progress = (step - warmup - stable) / std::max(1.0, decay);
    return base * lifted(falling(down, cycles, progress), least);
  }};
}

// The base rate of a group is the top of its cycle.
Curve one_cycle(const ScheduleOptions& options, OptionReader& reader) {
  const double total = as_double(options.total_steps);
  const double start = reader.number("pct_start", 0.3);
  reader.refuse(start < 0 || start > 1, "options.pct_start: must be in [0, 1]");
  const bool cosine = reader.word("anneal_strategy", kAnnealings) == "cos";
  const bool cycles_momentum = reader.flag("cycle_momentum", true);
  const double low = reader.number("base_momentum", 0.85);
  const double high = reader.number("max_momentum", 0.95);
  const double initial = 1 / reader.positive("div_factor", 25);
  const double last = initial / reader.positive("final_div_factor", 1e4);
  std::vector<Phase> phases{{start * total - 1, initial, 1, high, low}};
  if (reader.flag("three_phase", false)) {
    phases.push_back({2 * start * total - 2, 1, initial, low, high});
    phases.push_back({total - 1, initial, last, high, high});
  } else {
    phases.push_back({total - 1, 1, last, low, high});
  }
  const auto anneal = [cosine](double from, double to, double part) {
    return cosine ? to + (from - to) / 2.0 * (std::cos(pi * part) + 1) : (to - from) * part + from;
  };
  // Returns the phase of a step and how far it is.
  const auto find = [phases, total, hold = options.hold](double step) {
    const double at = hold ? std::min(step, total - 1) : step;
    double begin = 0;
    for (const Phase& phase : phases) {
      if (at <= phase.end || &phase == &phases.back()) {
        const double length = phase.end - begin;
        return std::pair(phase, length == 0 ? 1.0 : (at - begin) / length);
      }
      begin = phase.end;
    }
    return std::pair(phases.back(), 1.0);
  };
  Curve curve;
  curve.rate = [=](double base, double step) {
    const auto [phase, part] = find(step);
    return anneal(base * phase.from, base * phase.to, part);
  };
  if (cycles_momentum) {
    curve.momentum = [=](double step) {
      const auto [phase, part] = find(step);
      return Momentum{anneal(phase.momentum_from, phase.momentum_to, part)};
    };
  }
  return curve;
}

}  // namespace trireme::optim::detail
