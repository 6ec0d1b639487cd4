// Loss scales against torch's GradScaler, bit by bit, and DeepSpeed's DynamicLossScaler.
#include "trireme/optim/loss_scaler.hpp"

#include "support/safetensors.hpp"
#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>

namespace trireme::optim {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  return support::read_json(std::filesystem::path(TRIREME_TEST_DATA) / "optim/data/scaler" / name);
}

std::uint32_t bits(double scale) { return std::bit_cast<std::uint32_t>(static_cast<float>(scale)); }

LossScalerOptions torch_options(const json& one) {
  LossScalerOptions options;
  options.initial_scale = one["init_scale"];
  options.growth_factor = one.value("growth_factor", options.growth_factor);
  options.backoff_factor = one.value("backoff_factor", options.backoff_factor);
  options.growth_interval = one["growth_interval"];
  return options;
}

TEST(LossScaler, is_torchs_grad_scaler_to_the_bit) {
  const json all = golden("grad_scaler.json");
  for (const json& one : all["cases"]) {
    SCOPED_TRACE(one["init_scale"].dump());
    LossScaler scaler(torch_options(one));
    for (std::size_t i = 0; i < one["overflow"].size(); ++i) {
      scaler.update(one["overflow"][i] != 0);
      ASSERT_EQ(bits(scaler.scale()), one["scale_bits"][i].get<std::uint32_t>()) << i;
      ASSERT_EQ(scaler.growth_tracker(), one["growth_tracker"][i].get<std::int64_t>()) << i;
    }
  }
}

// Two optimizers share a scale: it backs off when either overflowed.
TEST(LossScaler, serves_two_optimizers) {
  const json all = golden("two_optimizers.json");
  for (const json& one : all["cases"]) {
    LossScaler scaler(torch_options(one));
    for (std::size_t i = 0; i < one["overflow"].size(); ++i) {
      scaler.update(one["overflow"][i][0] != 0 || one["overflow"][i][1] != 0);
      ASSERT_EQ(bits(scaler.scale()), one["scale_bits"][i].get<std::uint32_t>()) << i;
    }
  }
}

TEST(LossScaler, unscales_as_torch_does) {
  const json all = golden("unscale.json");
  for (const json& one : all["cases"]) {
    LossScalerOptions options;
    options.rule = ScaleRule::kFixed;
    options.initial_scale = std::bit_cast<float>(one["scale_bits"].get<std::uint32_t>());
    const LossScaler scaler(options);
    bool found = false;
    for (std::size_t i = 0; i < one["grad_bits"].size(); ++i) {
      const auto grad = std::bit_cast<float>(one["grad_bits"][i].get<std::uint32_t>());
      const float unscaled = grad * scaler.inverse();
      const auto expected = one["unscaled_bits"][i].get<std::uint32_t>();
      if (std::isnan(std::bit_cast<float>(expected))) {
        EXPECT_TRUE(std::isnan(unscaled));
      } else {
        ASSERT_EQ(bits(unscaled), expected) << i;
      }
      found = found || !std::isfinite(grad);
    }
    EXPECT_EQ(found, one["found_inf"] != 0);
  }
}

LossScalerOptions deepspeed_options(const json& from) {
  LossScalerOptions options;
  options.rule = ScaleRule::kDeepSpeed;
  options.initial_scale = from["init_scale"];
  options.growth_interval = from["scale_window"];
  options.min_scale = from["min_scale"];
  options.hysteresis = from["hysteresis"];
  options.consecutive_hysteresis = from["consecutive_hysteresis"];
  options.stop_at_min_scale = from["raise_error_at_min_scale"];
  return options;
}

TEST(LossScaler, follows_deepspeeds_hysteresis) {
  const json all = golden("deepspeed.json");
  for (const json& one : all["cases"]) {
    SCOPED_TRACE(one["options"].dump());
    LossScaler scaler(deepspeed_options(one["options"]));
    for (std::size_t i = 0; i < one["overflow"].size(); ++i) {
      const bool overflow = one["overflow"][i] != 0;
      if (one.contains("raises") && one["raises"] == i) {
        EXPECT_THROW(scaler.update(overflow), Error);
        break;
      }
      scaler.update(overflow);
      ASSERT_EQ(scaler.scale(), one["scale"][i].get<double>()) << i;
      ASSERT_EQ(scaler.hysteresis(), one["hysteresis"][i].get<std::int64_t>()) << i;
    }
  }
}

TEST(LossScaler, goes_on_from_its_state) {
  for (const ScaleRule rule : {ScaleRule::kTorch, ScaleRule::kDeepSpeed}) {
    LossScalerOptions options;
    options.rule = rule;
    options.growth_interval = 3;
    LossScaler whole(options);
    LossScaler part(options);
    for (int i = 0; i < 40; ++i) {
      const bool overflow = i % 7 == 2 || i % 11 == 3;
      whole.update(overflow);
      part.update(overflow);
      LossScaler next(options);
      next.restore(part.state());
      part = next;
      ASSERT_EQ(part.scale(), whole.scale());
      ASSERT_EQ(part.state(), whole.state());
    }
    EXPECT_THROW(part.restore("{}"), Error);
    EXPECT_THROW(part.restore(""), Error);
  }
}

TEST(LossScaler, refuses_factors_that_do_nothing) {
  for (const auto& change : {+[](LossScalerOptions& o) { o.initial_scale = 0; },
                             +[](LossScalerOptions& o) { o.growth_factor = 1; },
                             +[](LossScalerOptions& o) { o.backoff_factor = 1; },
                             +[](LossScalerOptions& o) { o.growth_interval = 0; },
                             +[](LossScalerOptions& o) { o.initial_scale = 1e39; },
                             +[](LossScalerOptions& o) { o.hysteresis = 0; }}) {
    LossScalerOptions options;
    change(options);
    EXPECT_THROW(LossScaler{options}, Error);
  }
}

}  // namespace
}  // namespace trireme::optim
