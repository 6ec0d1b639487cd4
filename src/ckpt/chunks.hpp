// A tensor of a checkpoint a few blocks at a time, so that no tool needs the memory of a whole one.
#pragma once

#include "ckpt/format.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::ckpt {

inline std::int64_t elements_of(const TensorSpec& spec) {
  return static_cast<std::int64_t>(*bytes_of(spec.dtype, spec.shape) / element_bytes(spec.dtype));
}

// Gives the tensor's bytes in order, checked, to `use(first element, bytes)`. `buffer` is scratch
// memory that the caller keeps from one tensor to the next.
template <class Use>
void each_chunk(const Reader& reader, std::size_t tensor, std::vector<std::byte>& buffer, Use use) {
  const TensorSpec& spec = reader.tensors()[tensor];
  const auto size = static_cast<std::int64_t>(element_bytes(spec.dtype));
  const std::int64_t most = static_cast<std::int64_t>(4 * kCrcBlock) / size;
  const std::int64_t elements = elements_of(spec);
  buffer.resize(static_cast<std::size_t>(std::min(most, elements) * size));
  for (std::int64_t begin = 0; begin < elements; begin += most) {
    const std::int64_t count = std::min(most, elements - begin);
    const Extent extent{tensor, begin, count, buffer.data()};
    reader.read({&extent, 1});
    use(begin, std::span<const std::byte>(buffer).first(static_cast<std::size_t>(count * size)));
  }
}

}  // namespace trireme::ckpt
