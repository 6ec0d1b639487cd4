// Errors on their way to a person.
#pragma once

#include "trireme/base/error.hpp"

#include <exception>

namespace trireme::app {

// Returns any exception as an Error; what is not one already is Internal or OutOfMemory.
Error as_error(const std::exception& exception);

// Prints the report to standard error, in one piece.
void print_error(const Error& error);

}  // namespace trireme::app
