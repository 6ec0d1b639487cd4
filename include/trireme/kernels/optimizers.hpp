// Update rules of optimizers in one pass over memory: scale the gradient, bound it, move the
// weights and the moments, and write the weights that the network computes with. The arithmetic is
// fp32 with the rounding of PyTorch's single-tensor CPU implementation, so results are its bits.
//
// Moments are kept in fp32 or in bf16. bf16 is rounded stochastically, since rounding to nearest
// would lose every change below 2^-9 of the value: the random bits are a pure function of (key,
// moment, element), so no split, rank count or thread count changes them. Adafactor, which looks at
// whole rows and columns, is in kernels/adafactor.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::kernels {

enum class NumberType { kFp32, kBf16, kFp16 };

// Where an update writes the weights to compute with; null data: nowhere.
struct WorkRange {
  void* data = nullptr;
  NumberType type = NumberType::kBf16;
};

// Part of one parameter. All arrays are as long as `master`.
struct UpdateRange {
  std::span<const float> grad;
  std::span<float> master;
  std::array<void*, 3> moments{};              // as many as the rule keeps
  NumberType moment_type = NumberType::kFp32;  // or kBf16
  WorkRange work = {};
  std::uint64_t first_element = 0;  // its number among all elements: keys stochastic rounding
};

// How every gradient is treated before the rule sees it.
struct GradientTreatment {
  float scale = 1;             // unscale, mean and clip in one factor
  float clip_value = 0;        // then bounded to [-clip_value, clip_value]; 0: not
  bool maximize = false;       // then negated
  std::uint64_t rounding = 0;  // key of this update's stochastic rounding
};

// torch.optim.AdamW and, with decoupled = false, torch.optim.Adam. Moments: the mean, the mean of
// squares, and with amsgrad the largest mean of squares so far.
struct AdamRule {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // decay the weights themselves, not by way of the gradient
  bool amsgrad = false;
  std::int64_t step = 1;  // counts from 1
};

// torch.optim.SGD. Moments: the momentum buffer, where momentum is not 0.
struct SgdRule {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  std::int64_t step = 1;  // the first fills the buffer
};

// torch.optim.Adagrad. Moments: the sum of squares.
struct AdagradRule {
  double lr = 0;
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  std::int64_t step = 1;
};

// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023), as lion-pytorch.
// Moments: the mean.
struct LionRule {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

int num_moments(const AdamRule& rule);
int num_moments(const SgdRule& rule);
int num_moments(const AdagradRule& rule);
int num_moments(const LionRule& rule);

void update(const AdamRule& rule, const GradientTreatment& treatment, const UpdateRange& range);
void update(const SgdRule& rule, const GradientTreatment& treatment, const UpdateRange& range);
void update(const AdagradRule& rule, const GradientTreatment& treatment, const UpdateRange& range);
void update(const LionRule& rule, const GradientTreatment& treatment, const UpdateRange& range);

}  // namespace trireme::kernels
