// Micro-batches as tensors. Private to the room.
#pragma once

#include "trireme/data/batches.hpp"

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme::train {

struct TokenBatch {
  at::Tensor inputs_BT;
  at::Tensor targets_BT;
};

class TokenBatches {
 public:
  // `first_ignored`: positions in the stream of samples from here on are read, but their targets
  // count for nothing.
  explicit TokenBatches(data::Batches batches, std::uint64_t first_ignored = ~std::uint64_t{0});

  // Reads micro-batch m of the step that starts at sample `position`. The tensors are reused by the
  // next call.
  TokenBatch read(std::uint64_t position, std::int64_t m);
  // Seconds since the last call that read() took.
  double take_seconds();

 private:
  data::Batches batches_;
  std::uint64_t first_ignored_;
  TokenBatch batch_;
  double seconds_ = 0;
};

}  // namespace trireme::train
