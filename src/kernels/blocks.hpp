// How every kernel of this room runs: a range is cut into fixed blocks, a named functor does one
// block, and Kokkos hands blocks to the host threads it has. No block depends on another and none
// on the number of threads, so results do not either. Inner loops are plain loops over restrict
// pointers in small functions: what GCC 12 vectorises reliably.
#pragma once

#include "trireme/base/error.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>

namespace trireme::kernels::detail {

// Two or three streams of this many floats stay in a first-level cache.
inline constexpr std::int64_t kBlock = 8192;

constexpr std::int64_t num_blocks(std::int64_t size, std::int64_t block) {
  return (size + block - 1) / block;
}

// The part of [0, size) that belongs to one block.
struct Run {
  std::int64_t begin;
  std::int64_t size;
};

constexpr Run run_of(std::int64_t index, std::int64_t block, std::int64_t size) {
  const std::int64_t begin = index * block;
  return {begin, std::min(block, size - begin)};
}

// Calls kernel(b) for b in [0, count) and returns when all are done. Throws Internal while no
// Runtime is alive.
template <class Kernel>
void for_each_block(std::int64_t count, const Kernel& kernel) {
  using Space = Kokkos::DefaultHostExecutionSpace;
  if (count == 0) return;
  ensure(Kokkos::is_initialized(), "a kernel was called without a kernels::Runtime");
  if (count == 1) return kernel(0);  // also in threads that are not Kokkos'
  Kokkos::parallel_for(Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(0, count),
                       kernel);
  Space().fence();
}

}  // namespace trireme::kernels::detail
