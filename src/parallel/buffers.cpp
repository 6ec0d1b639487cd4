#include "parallel/buffers.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_set>

namespace trireme::parallel {

namespace {

std::int64_t version_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor._version());
}

// Operators like batch_norm change buffers without counting a version. Larger ones, such as masks,
// are taken at their word.
constexpr std::int64_t kCompared = 1 << 20;

}  // namespace

bool Buffers::Buffer::has_changed() const {
  if (version != version_of(tensor)) return true;
  return tensor.numel() <= kCompared && !torch::equal(tensor, base);
}

Buffers::Buffers(const ModuleTree& tree) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : tree.all_buffers()) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second)
      buffers_.push_back({name, tensor, {}, -1});
  }
}

void Buffers::begin_step() {
  changes_.clear();
  for (Buffer& buffer : buffers_) {
    if (buffer.base.defined() && !buffer.has_changed()) continue;
    buffer.base = buffer.tensor.detach().clone();
    buffer.version = version_of(buffer.tensor);
  }
}

void Buffers::set(Buffer& buffer, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  buffer.tensor.copy_(values);
  buffer.version = version_of(buffer.tensor);
}

void Buffers::begin_micro_batch() {
  for (Buffer& buffer : buffers_) {
    if (buffer.has_changed()) set(buffer, buffer.base);
  }
}

void Buffers::end_micro_batch(std::int64_t index, bool counts) {
  if (!counts) return;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const Buffer& buffer = buffers_[b];
    if (!buffer.has_changed()) continue;
    const bool whole = at::isIntegralType(buffer.tensor.scalar_type(), /*includeBool=*/false);
    if (!whole && !buffer.tensor.is_floating_point()) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("buffer {} of type {} changes in forward", buffer.name,
                              toString(buffer.tensor.scalar_type())),
                  "ranks cannot agree on its value: keep it in a float or an integer tensor");
    }
    const at::Tensor by =
        (buffer.tensor.to(at::kDouble) - buffer.base.to(at::kDouble)).contiguous();
    const double* const values = by.const_data_ptr<double>();
    changes_.push_back({index, static_cast<std::int64_t>(b), {values, values + by.numel()}});
  }
}

void Buffers::apply(comm::Communicator& world) {
  comm::ByteVector mine;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* const from = static_cast<const std::byte*>(data);
    mine.insert(mine.end(), from, from + size);
  };
  for (const Change& change : changes_) {
    const std::int64_t head[] = {change.buffer, change.micro_batch};
    append(head, sizeof head);
    append(change.by.data(), change.by.size() * sizeof(double));
  }
  // By buffer and micro-batch: the order of addition does not depend on who computed what.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<double>> all;
  for (const comm::ByteVector& bytes : world.all_gather(mine, "changes of buffers")) {
    for (std::size_t at = 0; at < bytes.size();) {
      std::int64_t head[2];
      std::memcpy(head, bytes.data() + at, sizeof head);
      at += sizeof head;
      std::vector<double> by(
          static_cast<std::size_t>(buffers_[static_cast<std::size_t>(head[0])].tensor.numel()));
      std::memcpy(by.data(), bytes.data() + at, by.size() * sizeof(double));
      at += by.size() * sizeof(double);
      all[{head[0], head[1]}] = std::move(by);
    }
  }
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    Buffer& buffer = buffers_[b];
    at::Tensor sum = torch::zeros(buffer.tensor.sizes(), at::kDouble);
    std::int64_t count = 0;
    for (auto it = all.lower_bound({static_cast<std::int64_t>(b), 0});
         it != all.end() && it->first.first == static_cast<std::int64_t>(b); ++it, ++count) {
      sum += torch::from_blob(it->second.data(), buffer.tensor.sizes(), at::kDouble);
    }
    if (count == 0) continue;
    if (buffer.tensor.is_floating_point()) sum /= count;
    set(buffer, (buffer.base.to(at::kDouble) + sum).to(buffer.tensor.scalar_type()));
    buffer.base = buffer.tensor.detach().clone();
  }
}

}  // namespace trireme::parallel
