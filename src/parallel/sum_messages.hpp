// Partial sums of gradients on their way to other ranks: in fp32 from and to where they are, or in
// bf16, rounded once, in memory of their own. Private to the room.
#pragma once

#include "trireme/kernels/convert.hpp"

#include "parallel/fabric.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::parallel {

class SumMessages {
 public:
  // In fp32.
  SumMessages() = default;
  // In bf16, at most so many elements an exchange, both ways together.
  SumMessages(Fabric& fabric, std::int64_t most_elements, std::string label);

  // A new exchange: memory of the last one is free.
  void restart();
  // What to send for a partial sum. In fp32 it is the sum itself, which must stay.
  std::span<const std::byte> outgoing(std::span<const float> partial);
  // Where to receive a partial sum that is to be in `into` after unpack().
  std::span<std::byte> incoming(std::span<float> into);
  // After the exchange; perhaps in another thread, so block by block, as kernels go there.
  void unpack() const;

  Bytes size() const { return Bytes(static_cast<std::int64_t>(memory_.bytes().size())); }

 private:
  bool narrow() const { return !memory_.bytes().empty(); }
  std::span<kernels::Half> take(std::size_t count);

  Buffer memory_;
  std::size_t used_ = 0;  // elements
  std::vector<std::pair<std::span<const kernels::Half>, std::span<float>>> received_;
};

}  // namespace trireme::parallel
