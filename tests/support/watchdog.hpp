// Ends a test that hangs, shortly before ctest would kill it without a word: prints the rank, the test that was running
// and a backtrace, then leaves with exit code 124.
#pragma once

#include <string_view>

namespace trireme::testing {

// Starts the clock: nine tenths of TRIREME_TEST_TIMEOUT seconds, at least 3 s before it. Without that variable (a test run by hand, perhaps
// in a debugger) there is no watchdog.
void start_watchdog(int rank);

// Remembers the name of the test that runs now, for the message.
void watch(std::string_view test);

}  // namespace trireme::testing
