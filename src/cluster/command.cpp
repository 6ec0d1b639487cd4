#include "trireme/cluster/command.hpp"

#include "trireme/base/error.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

extern char** environ;

namespace trireme::cluster {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostOutput = 1U << 20U;

// A child in a process group of its own with both its outputs in a pipe.
struct Child {
  pid_t pid = -1;
  int out = -1;
};

Child start(const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe", words.at(0));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  Child child{-1, ends[0]};
  if (posix_spawnp(&child.pid, arguments[0], &actions, &attributes, arguments.data(), environ) != 0)
    child.pid = -1;
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  return child;
}

// Reads until the pipe is closed by all who hold it; returns false at the deadline.
bool read_all(int descriptor, Clock::time_point end, std::string& output) {
  std::array<char, 4096> buffer{};
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd waiting{descriptor, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::clamp<long>(left, 0, 1000)));
    if (ready == 0 && left <= 0) return false;
    if (ready <= 0) continue;
    const ssize_t count = read(descriptor, buffer.data(), buffer.size());
    if (count == 0) return true;
    if (count < 0 && errno != EINTR) return true;
    if (count > 0 && output.size() < kMostOutput)
      output.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

// Returns nothing at the deadline.
std::optional<int> wait_until(pid_t pid, Clock::time_point end) {
  int status = 0;
  while (true) {
    const pid_t found = waitpid(pid, &status, WNOHANG);
    if (found == pid) return code_of(status);
    if (found < 0 && errno != EINTR) return -1;  // somebody else has waited for all children
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, std::chrono::milliseconds limit) {
  ensure(!words.empty(), "a command has a name");
  const auto end = Clock::now() + limit;
  CommandResult result;
  const Child child = start(words);
  if (child.pid < 0) {
    close(child.out);
    result.code = 127;
    return result;
  }
  result.timed_out = !read_all(child.out, end, result.output);
  close(child.out);
  const auto code = result.timed_out ? std::nullopt : wait_until(child.pid, end);
  if (code) {
    result.code = *code;
    return result;
  }
  result.timed_out = true;
  kill(-child.pid, SIGKILL);
  result.code = wait_until(child.pid, Clock::now() + std::chrono::seconds(5)).value_or(-1);
  return result;
}

Ask ask_within(std::chrono::milliseconds limit) {
  return [limit](const std::vector<std::string>& words) { return run_command(words, limit); };
}

}  // namespace trireme::cluster
