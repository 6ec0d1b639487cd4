// What losses are multiplied with so that fp16 gradients neither vanish nor overflow. Pure state:
// who finds overflows (Engine::sums) and who skips (the step) is elsewhere.
//
// torch's rule is that of torch.amp.GradScaler to the bit: back off at once, grow after
// growth_interval good steps in a row. DeepSpeed's tolerates `hysteresis` overflows before it backs
// off, counts intervals from the last overflow, and refuses to go below min_scale.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::optim {

enum class ScaleRule { kFixed, kTorch, kDeepSpeed };

struct LossScalerOptions {
  ScaleRule rule = ScaleRule::kTorch;
  double initial_scale = 65536;
  double growth_factor = 2;  // DeepSpeed's is always 2, its backoff 1/2
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  // DeepSpeed's
  std::int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;  // refilled by every good step, not only by growth
  double min_scale = 1;
  bool stop_at_min_scale = true;
};

class LossScaler {
 public:
  // Throws Config for factors that do not grow or back off.
  explicit LossScaler(const LossScalerOptions& options);

  double scale() const { return scale_; }
  // What gradients are multiplied with to undo the scale: 1 / scale, rounded to fp32.
  float inverse() const { return static_cast<float>(1.0 / scale_); }

  // Ends a step. Throws Config where DeepSpeed's rule has nothing left to lower.
  void update(bool overflow);

  std::int64_t growth_tracker() const { return good_; }
  std::int64_t hysteresis() const { return hysteresis_; }

  // JSON; restore() throws Corrupt for a text that is none. The rule may be another one than the
  // text was written with: the scale goes on.
  std::string state() const;
  void restore(const std::string& text);

 private:
  void update_torch(bool overflow);
  void update_deepspeed(bool overflow);

  LossScalerOptions options_;
  double scale_;
  std::int64_t good_ = 0;  // steps since the last overflow or growth; DeepSpeed: since an overflow
  std::int64_t hysteresis_;
};

}  // namespace trireme::optim
