#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace trireme::app {

namespace {

bool on_a_terminal() {
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && std::getenv("CI") == nullptr && terminal != nullptr &&
         std::string(terminal) != "dumb";
}

}  // namespace

ProgressLine::ProgressLine(std::string verb) : verb_(std::move(verb)), shown_(on_a_terminal()) {}

ProgressLine::~ProgressLine() {
  if (any_) fmt::print(stderr, "\r\033[K");
}

void ProgressLine::operator()(Bytes done, Bytes all) {
  constexpr std::chrono::milliseconds kPause(200);
  const Clock::time_point now = Clock::now();
  if (!shown_ || now - last_ < kPause) return;
  last_ = now;
  any_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const Bytes rate(static_cast<std::int64_t>(static_cast<double>(done.value) / seconds));
  fmt::print(stderr, "\r\033[K{} {} of {}, {}/s", verb_, human(done), human(all), human(rate));
  std::fflush(stderr);
}

}  // namespace trireme::app
