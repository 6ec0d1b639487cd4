#include "trireme/train/stop.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>

namespace trireme::train {

namespace {

// A handler can reach nothing but globals.
std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (number == SIGINT && received_signal.load() == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  received_signal.store(number);
}

struct Name {
  const char* name;
  int number;
};
constexpr Name kSignals[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM},
                             {"INT", SIGINT},   {"HUP", SIGHUP},   {"XCPU", SIGXCPU},
                             {"CONT", SIGCONT}};

int number_of(const std::string& name) {
  for (const Name& entry : kSignals) {
    if (name == entry.name) return entry.number;
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("stop.signals: '{}' is not a signal that can be caught here", name),
              "use USR1, USR2, TERM, INT, HUP, XCPU or CONT");
}

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

StopRequest::StopRequest(const std::vector<std::string>& signals,
                         std::optional<double> deadline_unix, double lead) {
  received_signal.store(0);
  if (deadline_unix) {
    deadline_ = *deadline_unix;
    stop_at_ = *deadline_unix - lead;
  }
  installed_.push_back(SIGINT);
  for (const std::string& name : signals) installed_.push_back(number_of(name));
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : installed_) sigaction(number, &action, nullptr);
}

StopRequest::~StopRequest() {
  for (const int number : installed_) std::signal(number, SIG_DFL);
}

bool StopRequest::requested() const {
  return received_signal.load() != 0 || (stop_at_ && unix_now() >= *stop_at_);
}

std::string StopRequest::reason() const {
  const int number = received_signal.load();
  for (const Name& entry : kSignals) {
    if (entry.number == number) return fmt::format("signal {}", entry.name);
  }
  if (stop_at_ && unix_now() >= *stop_at_)
    return fmt::format("the time limit in {:.0f} s", deadline_ - unix_now());
  return "another rank's request";
}

}  // namespace trireme::train
