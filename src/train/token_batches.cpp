#include "token_batches.hpp"

#include "trireme/base/deadline.hpp"
#include "trireme/model/language_model.hpp"

#include <torch/torch.h>

namespace trireme::train {

TokenBatches::TokenBatches(data::Batches batches, std::uint64_t first_ignored)
    : batches_(std::move(batches)), first_ignored_(first_ignored) {
  const auto shape = {batches_.micro_batch_size(), batches_.sequence_length()};
  batch_.inputs_BT = torch::zeros(shape, torch::kInt64);
  batch_.targets_BT = torch::zeros(shape, torch::kInt64);
}

TokenBatch TokenBatches::read(std::uint64_t position, std::int64_t m) {
  const auto start = Clock::now();
  const auto span_of = [](at::Tensor& tensor) {
    return std::span<std::int64_t>(tensor.data_ptr<std::int64_t>(),
                                   static_cast<std::size_t>(tensor.numel()));
  };
  batches_.read(position, m, {span_of(batch_.inputs_BT), span_of(batch_.targets_BT)});
  for (std::int64_t b = 0; b < batches_.micro_batch_size(); ++b) {
    const auto sample = position + static_cast<std::uint64_t>(m * batches_.micro_batch_size() + b);
    if (sample >= first_ignored_) batch_.targets_BT[b].fill_(model::kIgnoredTarget);
  }
  seconds_ += seconds_since(start);
  return batch_;
}

double TokenBatches::take_seconds() { return std::exchange(seconds_, 0.0); }

}  // namespace trireme::train
