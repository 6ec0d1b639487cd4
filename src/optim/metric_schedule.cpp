#include "trireme/optim/metric_schedule.hpp"

#include "trireme/base/error.hpp"

#include "option_reader.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme::optim {

namespace {

const std::array<std::string, 2> kModes{"min", "max"};
const std::array<std::string, 2> kRelativeFirst{"rel", "abs"};
const std::array<std::string, 2> kAbsoluteFirst{"abs", "rel"};

std::int64_t count(detail::OptionReader& reader, const std::string& name, double otherwise) {
  const double value = reader.number(name, otherwise);
  reader.refuse(value < 0 || value != std::floor(value) || value > 1e15,
                fmt::format("options.{}: must be a whole number, 0 or more", name));
  return static_cast<std::int64_t>(value);
}

// JSON has no infinities: doubles are kept as their bits.
std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
double from_bits(std::uint64_t value) { return std::bit_cast<double>(value); }

template <class Values>
std::vector<std::uint64_t> all_bits(const Values& values) {
  std::vector<std::uint64_t> result;
  for (const double value : values) result.push_back(bits(value));
  return result;
}

}  // namespace

MetricSchedule::MetricSchedule(const MetricScheduleOptions& options)
    : bases_(options.bases), min_lrs_(options.min_lrs) {
  ensure(is(options.type), "a schedule that looks at no metric");
  detail::OptionReader reader(options.type, options.options);
  greedy_ = options.type == "greedy";
  largest_is_best_ = reader.word("mode", kModes) == "max";
  relative_ = reader.word("threshold_mode", greedy_ ? kAbsoluteFirst : kRelativeFirst) == "rel";
  factor_ = reader.number("factor", greedy_ ? 0.95 : 0.1);
  reader.refuse(!(factor_ > 0 && factor_ < 1), "options.factor: must be between 0 and 1");
  threshold_ = reader.number("threshold", greedy_ ? 1e-6 : 1e-4);
  patience_ = count(reader, "patience", 10);
  cooldown_ = count(reader, "cooldown", 0);
  eps_ = reader.number("eps", 1e-8);
  const double least = reader.number("min_lr", greedy_ ? 1e-3 : 0);
  if (min_lrs_.empty()) min_lrs_.assign(bases_.size(), least);
  reader.refuse(min_lrs_.size() != bases_.size(), "options.min_lr: one for each group");
  if (greedy_) {
    max_lr_ = reader.number("max_lr", 1.0);
    warmup_ = count(reader, "warmup", 0);
    smooth_ = reader.flag("smooth", false);
    window_size_ = count(reader, "window_size", 50);
    reader.refuse(window_size_ == 0, "options.window_size: must be at least 1");
    reset_start_ = count(reader, "reset_start", 500);
  }
  reader.finish();
  state_ = initial();
}

MetricSchedule::State MetricSchedule::initial() const {
  State state;
  state.rates = bases_;
  state.best = largest_is_best_ ? -std::numeric_limits<double>::infinity()
                                : std::numeric_limits<double>::infinity();
  state.reset = reset_start_;
  return state;
}

double MetricSchedule::rate(double base) const {
  const auto found = std::ranges::find(bases_, base);
  ensure(found != bases_.end(), "a base rate that the schedule was not told of");
  return state_.rates[static_cast<std::size_t>(found - bases_.begin())];
}

bool MetricSchedule::better(double metric) const {
  const double best = state_.best;
  if (largest_is_best_) {
    return metric > (relative_ ? best * (1.0 + threshold_) : best + threshold_);
  }
  return metric < (relative_ ? best * (1.0 - threshold_) : best - threshold_);
}

double MetricSchedule::smoothed(double metric) {
  state_.window.push_back(metric);
  state_.window_sum += metric;
  if (std::ssize(state_.window) > window_size_) {
    state_.window_sum -= state_.window.front();
    state_.window.pop_front();
  }
  return state_.window_sum / static_cast<double>(state_.window.size());
}

void MetricSchedule::observe(double metric) {
  if (greedy_) {
    observe_greedy(smooth_ ? smoothed(metric) : metric);
  } else {
    observe_plateau(metric);
  }
}

void MetricSchedule::observe_plateau(double metric) {
  if (better(metric)) {
    state_.best = metric;
    state_.bad = 0;
  } else {
    ++state_.bad;
  }
  if (state_.cooldown > 0) {
    --state_.cooldown;
    state_.bad = 0;
  }
  if (state_.bad <= patience_) return;
  lower();
  state_.cooldown = cooldown_;
  state_.bad = 0;
}

void MetricSchedule::observe_greedy(double metric) {
  if (state_.cooldown > 0 || state_.warmup > 0) {
    --(state_.cooldown > 0 ? state_.cooldown : state_.warmup);
    state_.bad = 0;
    state_.good = 0;
    return;
  }
  if (better(metric)) {
    state_.best = metric;
    state_.bad = 0;
    ++state_.good;
  } else {
    ++state_.bad;
    state_.good = 0;
  }
  if (state_.good > patience_) {
    raise();
    state_.warmup = warmup_;
    state_.good = 0;
  } else if (state_.bad > patience_) {
    if (lower() && --state_.reset <= 0) state_ = initial();
    state_.cooldown = cooldown_;
    state_.bad = 0;
  }
}

bool MetricSchedule::lower() {
  bool all_least = true;
  for (std::size_t g = 0; g < state_.rates.size(); ++g) {
    const double lower = std::max(state_.rates[g] * factor_, min_lrs_[g]);
    if (state_.rates[g] - lower > eps_) state_.rates[g] = lower;
    all_least = all_least && state_.rates[g] <= min_lrs_[g];
  }
  return all_least;
}

void MetricSchedule::raise() {
  for (double& rate : state_.rates) {
    const double higher = std::min(rate / factor_, max_lr_);
    if (higher - rate > eps_) rate = higher;
  }
  state_.reset = reset_start_;
}

std::string MetricSchedule::state() const {
  return nlohmann::ordered_json{{"rates", all_bits(state_.rates)},
                                {"best", bits(state_.best)},
                                {"bad", state_.bad},
                                {"good", state_.good},
                                {"cooldown", state_.cooldown},
                                {"warmup", state_.warmup},
                                {"reset", state_.reset},
                                {"window", all_bits(state_.window)},
                                {"window_sum", bits(state_.window_sum)}}
      .dump();
}

void MetricSchedule::restore(const std::string& text) {
  State state;
  try {
    const auto json = nlohmann::json::parse(text);
    for (const std::uint64_t rate : json.at("rates")) state.rates.push_back(from_bits(rate));
    state.best = from_bits(json.at("best").get<std::uint64_t>());
    json.at("bad").get_to(state.bad);
    json.at("good").get_to(state.good);
    json.at("cooldown").get_to(state.cooldown);
    json.at("warmup").get_to(state.warmup);
    json.at("reset").get_to(state.reset);
    for (const std::uint64_t value : json.at("window")) state.window.push_back(from_bits(value));
    state.window_sum = from_bits(json.at("window_sum").get<std::uint64_t>());
  } catch (const nlohmann::json::exception& exception) {
    Error error(ErrorKind::kCorrupt, "the state of the schedule cannot be read");
    error.cause = exception.what();
    throw error;
  }
  if (state.rates.size() != bases_.size()) {
    throw Error(ErrorKind::kConfig,
                fmt::format("the checkpoint's schedule has {} groups of parameters, this run {}",
                            state.rates.size(), bases_.size()),
                "set optimizer.groups as they were");
  }
  state_ = std::move(state);
}

}  // namespace trireme::optim
