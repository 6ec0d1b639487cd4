#include "parallel/sum_messages.hpp"

#include "trireme/parallel/layout.hpp"

#include <algorithm>

namespace trireme::parallel {

SumMessages::SumMessages(Fabric& fabric, std::int64_t most_elements, std::string label)
    : memory_(fabric.buffer(Bytes(most_elements * static_cast<std::int64_t>(sizeof(kernels::Half))),
                            std::move(label))) {}

void SumMessages::restart() {
  used_ = 0;
  received_.clear();
}

std::span<kernels::Half> SumMessages::take(std::size_t count) {
  return memory_.as<kernels::Half>().subspan(std::exchange(used_, used_ + count), count);
}

std::span<const std::byte> SumMessages::outgoing(std::span<const float> partial) {
  if (!narrow()) return std::as_bytes(partial);
  const std::span<kernels::Half> message = take(partial.size());
  kernels::narrow_bf16(partial, message);
  return std::as_bytes(message);
}

std::span<std::byte> SumMessages::incoming(std::span<float> into) {
  if (!narrow()) return std::as_writable_bytes(into);
  const std::span<kernels::Half> message = take(into.size());
  received_.emplace_back(message, into);
  return std::as_writable_bytes(message);
}

void SumMessages::unpack() const {
  constexpr auto kElements = static_cast<std::size_t>(kBlock);
  for (const auto& [message, into] : received_) {
    for (std::size_t at = 0; at < into.size(); at += kElements) {
      const std::size_t count = std::min(kElements, into.size() - at);
      kernels::widen_bf16(message.subspan(at, count), into.subspan(at, count));
    }
  }
}

}  // namespace trireme::parallel
