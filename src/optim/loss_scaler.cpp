#include "trireme/optim/loss_scaler.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace trireme::optim {

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options),
      // torch keeps its scale in fp32.
      scale_(options.rule == ScaleRule::kDeepSpeed
                 ? options.initial_scale
                 : static_cast<double>(static_cast<float>(options.initial_scale))),
      hysteresis_(options.hysteresis) {
  std::vector<std::string> problems;
  const auto refuse = [&](bool wrong, const char* text) {
    if (wrong) problems.emplace_back(text);
  };
  refuse(!(scale_ > 0 && std::isfinite(scale_)), "precision.initial_scale: must be above 0");
  refuse(!(options.growth_factor > 1), "precision.growth_factor: must be above 1");
  refuse(!(options.backoff_factor > 0 && options.backoff_factor < 1),
         "precision.backoff_factor: must be between 0 and 1");
  refuse(options.growth_interval < 1, "precision.growth_interval: must be at least 1");
  refuse(options.hysteresis < 1, "precision.hysteresis: must be at least 1");
  if (!problems.empty()) {
    throw Error(ErrorKind::kConfig, fmt::format("{}", fmt::join(problems, "\n")));
  }
}

void LossScaler::update(bool overflow) {
  if (options_.rule == ScaleRule::kTorch) update_torch(overflow);
  if (options_.rule == ScaleRule::kDeepSpeed) update_deepspeed(overflow);
}

// Products in double, rounded to fp32: as torch's update kernel.
void LossScaler::update_torch(bool overflow) {
  if (overflow) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    good_ = 0;
    return;
  }
  if (++good_ < options_.growth_interval) return;
  const auto grown = static_cast<float>(scale_ * options_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
  good_ = 0;
}

void LossScaler::update_deepspeed(bool overflow) {
  if (overflow) {
    good_ = 0;
    if (hysteresis_ > 1) {
      --hysteresis_;
      return;
    }
    if (scale_ == options_.min_scale && options_.stop_at_min_scale) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("gradients overflow at the least loss scale, {}", scale_),
                  "lower optimizer.lr, look at the data, or set precision.compute: bf16");
    }
    scale_ = std::max(scale_ / 2, options_.min_scale);
    return;
  }
  if (options_.consecutive_hysteresis) hysteresis_ = options_.hysteresis;
  // The interval is measured before this step is counted.
  if (good_ > 0 && good_ % options_.growth_interval == 0) {
    hysteresis_ = options_.hysteresis;
    scale_ *= 2;
  }
  ++good_;
}

std::string LossScaler::state() const {
  return nlohmann::ordered_json{{"scale", scale_}, {"good", good_}, {"hysteresis", hysteresis_}}
      .dump();
}

void LossScaler::restore(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    const double scale = json.at("scale").get<double>();
    const auto good = json.at("good").get<std::int64_t>();
    const auto hysteresis = json.at("hysteresis").get<std::int64_t>();
    if (options_.rule == ScaleRule::kFixed) return;  // the configuration says it
    scale_ = scale;
    good_ = good;
    hysteresis_ = std::min(hysteresis, options_.hysteresis);
  } catch (const nlohmann::json::exception& exception) {
    Error error(ErrorKind::kCorrupt, "the state of the loss scaler cannot be read");
    error.cause = exception.what();
    throw error;
  }
}

}  // namespace trireme::optim
