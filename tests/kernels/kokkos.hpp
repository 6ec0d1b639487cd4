// Kokkos for the life of a test program, and inputs that several kernel tests share.
#pragma once

#include "trireme/base/random.hpp"
#include "trireme/kernels/runtime.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::kernels {

class KokkosEnvironment : public testing::Environment {
 public:
  void SetUp() override { runtime_.emplace(); }
  void TearDown() override { runtime_.reset(); }

 private:
  std::optional<Runtime> runtime_;
};

// GoogleTest owns and deletes it.
inline testing::Environment* const kokkos =
    testing::AddGlobalTestEnvironment(new KokkosEnvironment);

// Sizes around the vector and block borders.
inline constexpr std::int64_t kSizes[] = {0,    1,    7,    63,   64,   65,
                                          2047, 2049, 8191, 8192, 8193, 100003};

// Numbers in [-scale, scale) that are the same on every machine.
inline std::vector<float> numbers(std::int64_t size, std::uint64_t key, float scale = 1.0F) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * (2.0F * unit_float(philox(key, i)[0]) - 1.0F);
  }
  return values;
}

}  // namespace trireme::kernels
