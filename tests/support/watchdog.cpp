#include "support/watchdog.hpp"

#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace trireme::testing {
namespace {

// Plain arrays: the signal handler may not allocate or lock.
std::array<char, 256> current_test = {};
std::array<char, 64> who = {};

void say(const char* text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
}

void on_alarm(int) {
  say("watchdog: ");
  say(who.data());
  say(" hangs in ");
  say(current_test[0] != '\0' ? current_test.data() : "the start or the end of the program");
  say("; backtrace:\n");
  std::array<void*, 64> frames = {};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())),
                       STDERR_FILENO);
  _exit(124);
}

}  // namespace

void start_watchdog(int rank) {
  const char* limit = std::getenv("TRIREME_TEST_TIMEOUT");
  // mpirun needs a second or two to take the other ranks down.
  const double allowed = limit != nullptr ? std::atof(limit) : 0.0;
  const double seconds = std::min(allowed * 0.9, allowed - 3.0);
  if (seconds <= 0.0) return;
  std::snprintf(who.data(), who.size(), "rank %d (pid %d)", rank, static_cast<int>(getpid()));
  // backtrace() loads libgcc on its first call, which a signal handler may not do.
  std::array<void*, 1> frame = {};
  backtrace(frame.data(), 1);
  struct sigaction action = {};
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, nullptr);
  itimerval timer = {};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec =
      static_cast<suseconds_t>((seconds - static_cast<double>(timer.it_value.tv_sec)) * 1e6);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void watch(std::string_view test) {
  const std::size_t length = std::min(test.size(), current_test.size() - 1);
  // The terminator first, so that the handler never reads past a half-written name.
  current_test[0] = '\0';
  std::copy_n(test.begin(), length, current_test.begin());
  current_test[length] = '\0';
}

}  // namespace trireme::testing
