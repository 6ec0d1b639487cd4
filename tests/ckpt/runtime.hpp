// The kernels' runtime for the life of a test program: a process starts it once.
#pragma once

#include "trireme/kernels/runtime.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace trireme::testing {

class KernelsEnvironment final : public ::testing::Environment {
 public:
  void SetUp() override { runtime_.emplace(); }
  void TearDown() override { runtime_.reset(); }

 private:
  std::optional<kernels::Runtime> runtime_;
};

// GoogleTest owns it.
inline const auto* const kKernels = ::testing::AddGlobalTestEnvironment(new KernelsEnvironment);

}  // namespace trireme::testing
