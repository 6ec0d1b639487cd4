#include "trireme/data/batches.hpp"

#include "trireme/base/error.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::data {

Batches::Batches(std::shared_ptr<const Dataset> dataset, SampleOrder order,
                 std::int64_t micro_batch_size)
    : dataset_(std::move(dataset)), order_(order), micro_batch_size_(micro_batch_size) {
  ensure(dataset_ != nullptr, "batches of no dataset");
  ensure(micro_batch_size_ >= 1, "a micro-batch has at least one sample");
}

void Batches::read(std::uint64_t position, std::int64_t m, const BatchSpans& out) const {
  const auto rows = static_cast<std::size_t>(micro_batch_size_);
  const auto length = static_cast<std::size_t>(sequence_length());
  ensure(out.inputs.size() == rows * length && out.targets.size() == rows * length,
         "a micro-batch is micro_batch_size x sequence_length tokens");
  ensure(m >= 0, "micro-batches count from 0");
  const std::uint64_t first = position + static_cast<std::uint64_t>(m) * rows;
  std::vector<std::int64_t> sample(length + 1);
  for (std::size_t row = 0; row < rows; ++row) {
    dataset_->read(order_.sample_at(first + row), sample);
    std::copy_n(sample.begin(), length, out.inputs.subspan(row * length).begin());
    std::copy_n(sample.begin() + 1, length, out.targets.subspan(row * length).begin());
  }
}

}  // namespace trireme::data
