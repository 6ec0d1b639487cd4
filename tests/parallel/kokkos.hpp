// Kokkos for the life of a test program.
#pragma once

#include "trireme/kernels/runtime.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace trireme::testing {

class Kokkos : public ::testing::Environment {
 public:
  void SetUp() override { runtime_.emplace(); }
  void TearDown() override { runtime_.reset(); }

 private:
  std::optional<kernels::Runtime> runtime_;
};

// GoogleTest owns and deletes it.
inline ::testing::Environment* const kokkos = ::testing::AddGlobalTestEnvironment(new Kokkos);

}  // namespace trireme::testing
