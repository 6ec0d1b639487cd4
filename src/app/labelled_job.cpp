#include "labelled_job.hpp"

#include "trireme/base/error.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <regex>

namespace trireme::app {

namespace {

constexpr std::size_t kMostErrorLines = 12;

void require(int code, const char* what) {
  if (code != 0) {
    errno = code;
    throw_errno(what, "launch");
  }
}

sigset_t passed_on() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

struct Pipe {
  Pipe() { require(::pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno, "make a pipe"); }
  ~Pipe() {
    ::close(ends[0]);
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_writer() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
  std::array<int, 2> ends{-1, -1};
};

// In a process group of its own, so that a signal from the terminal reaches it once: through us.
pid_t start(const std::vector<std::string>& words, int out, int err) {
  std::vector<std::string> copy = words;
  std::vector<char*> argv;
  for (std::string& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  require(posix_spawn_file_actions_init(&actions), "start");
  require(posix_spawnattr_init(&attributes), "start");
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, err, 2);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP));
  pid_t child = 0;
  const int code = posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (code != 0) {
    throw Error(ErrorKind::kEnvironment,
                fmt::format("cannot start {}: {}", words[0], std::generic_category().message(code)),
                "trireme doctor looks at what this machine has");
  }
  return child;
}

// Splits what one stream of the child says into lines and prints them.
class Stream {
 public:
  Stream(std::FILE* to, std::string& error) : to_(to), error_(error) {}

  void take(std::string_view text) {
    rest_ += text;
    for (std::size_t end = 0; (end = rest_.find('\n')) != std::string::npos;) {
      line(rest_.substr(0, end));
      rest_.erase(0, end + 1);
    }
    std::fflush(to_);
  }

  void finish() {
    if (!rest_.empty()) take("\n");
  }

 private:
  void line(const std::string& raw) {
    const std::string text = relabelled(raw);
    fmt::print(to_, "{}\n", text);
    remember(text);
  }

  // The first error and the lines that belong to it: those of its rank that are indented.
  void remember(const std::string& text) {
    static const std::regex first(
        R"(^(rank \d+: |)(trireme: error|terminate called|.*[Aa]ssertion|.*([Ee]rror|ERROR)[: ]).*)");
    std::smatch match;
    if (error_.empty()) {
      if (!std::regex_match(text, match, first) || match[1].length() == 0) return;
      error_ = text;
      start_ = match[1].str() + " ";
      open_ = 1;
    } else if (open_ > 0 && open_ < kMostErrorLines && text.starts_with(start_)) {
      error_ += "\n" + text;
      ++open_;
    }
  }

  std::FILE* to_;
  std::string& error_;
  std::string rest_;
  std::string start_;
  std::size_t open_ = 0;
};

// Returns false when the stream has ended.
bool drain(int from, Stream& to) {
  std::array<char, 16384> buffer{};
  const ssize_t got = ::read(from, buffer.data(), buffer.size());
  if (got > 0) to.take({buffer.data(), static_cast<std::size_t>(got)});
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

std::string relabelled(const std::string& line) {
  static const std::regex tag(R"(^(?:\[\d+,(\d+)\]<std(?:out|err)>:|\[(\d+)\] |\s*(\d+): )(.*)$)");
  std::smatch match;
  if (!std::regex_match(line, match, tag)) return line;
  const std::string rank = match[1].str() + match[2].str() + match[3].str();
  return fmt::format("rank {}: {}", rank, match[4].str());
}

JobOutcome run_labelled(const std::vector<std::string>& words) {
  JobOutcome outcome;
  const sigset_t signals = passed_on();
  sigset_t before;
  require(pthread_sigmask(SIG_BLOCK, &signals, &before), "block signals");
  const int told = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  Pipe out;
  Pipe err;
  const pid_t child = start(words, out.ends[1], err.ends[1]);
  out.close_writer();
  err.close_writer();
  Stream out_stream(stdout, outcome.first_error);
  Stream err_stream(stderr, outcome.first_error);
  std::array<pollfd, 3> waiting{
      {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}, {told, POLLIN, 0}}};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) break;
    if (waiting[0].revents != 0 && !drain(out.ends[0], out_stream)) waiting[0].fd = -1;
    if (waiting[1].revents != 0 && !drain(err.ends[0], err_stream)) waiting[1].fd = -1;
    signalfd_siginfo signal{};
    if (waiting[2].revents != 0 && ::read(told, &signal, sizeof signal) == sizeof signal) {
      outcome.signalled = true;
      ::kill(child, static_cast<int>(signal.ssi_signo));
    }
  }
  out_stream.finish();
  err_stream.finish();
  outcome.code = wait_for(child);
  ::close(told);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return outcome;
}

void print_first_error(const JobOutcome& outcome) {
  if (outcome.code == 0) return;
  fmt::print(stderr, "trireme: the job ended with exit code {}{}\n", outcome.code,
             outcome.first_error.empty() ? "" : "; the first error was");
  if (!outcome.first_error.empty()) fmt::print(stderr, "{}\n", outcome.first_error);
}

}  // namespace trireme::app
