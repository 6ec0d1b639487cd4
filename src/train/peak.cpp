#include "trireme/train/peak.hpp"

#include "trireme/base/deadline.hpp"

#include <torch/torch.h>

#include <algorithm>

namespace trireme::train {

double measure_gemm_peak(c10::ScalarType type) {
  constexpr std::int64_t kSize = 768;
  constexpr double kSeconds = 0.04;
  const at::NoGradGuard no_grad;
  const at::Tensor a = torch::ones({kSize, kSize}, type);
  const at::Tensor b = torch::ones({kSize, kSize}, type);
  at::Tensor c = torch::empty({kSize, kSize}, type);
  at::mm_out(c, a, b);  // the first product prepares the library
  double best = 0;
  const auto start = Clock::now();
  do {
    const auto one = Clock::now();
    at::mm_out(c, a, b);
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds_since(one));
  } while (seconds_since(start) < kSeconds);
  return best;
}

}  // namespace trireme::train
