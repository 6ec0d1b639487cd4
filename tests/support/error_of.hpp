// Returns the error that an action throws.
#pragma once

#include "trireme/base/error.hpp"

#include <gtest/gtest.h>

namespace trireme::testing {

// The error that `action` throws; fails the test when it throws none.
template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::kInternal, "nothing was thrown");
}

}  // namespace trireme::testing
