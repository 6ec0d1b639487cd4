// Micro-batches as pure functions of a position in the stream of samples: no iterator to save, any
// position in O(1).
#pragma once

#include "trireme/data/dataset.hpp"
#include "trireme/data/order.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace trireme::data {

// Where a micro-batch goes: micro_batch_size x sequence_length token ids each, row-major.
struct BatchSpans {
  std::span<std::int64_t> inputs;
  std::span<std::int64_t> targets;  // targets[b, t] follows inputs[b, t] in the text
};

class Batches {
 public:
  Batches(std::shared_ptr<const Dataset> dataset, SampleOrder order, std::int64_t micro_batch_size);

  std::int64_t micro_batch_size() const { return micro_batch_size_; }
  std::int64_t sequence_length() const { return dataset_->sequence_length(); }
  const Dataset& dataset() const { return *dataset_; }
  const SampleOrder& order() const { return order_; }

  // Reads micro-batch m of the step whose first sample is at `position`: the samples at positions
  // position + m * micro_batch_size and the following ones, across the end of an epoch too.
  void read(std::uint64_t position, std::int64_t m, const BatchSpans& out) const;

 private:
  std::shared_ptr<const Dataset>
      dataset_;  // shared with whoever else reads it, such as an evaluation
  SampleOrder order_;
  std::int64_t micro_batch_size_;
};

}  // namespace trireme::data
