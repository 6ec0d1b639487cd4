#include "trireme/obs/log.hpp"

#include "trireme/base/error.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace trireme::obs {

namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Colour only for people: not in files, pipes and CI, nor where NO_COLOR (no-color.org) asks for
// none.
bool console_has_colour() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  return ::isatty(STDERR_FILENO) == 1 && !set("NO_COLOR") && !set("CI") && !dumb;
}

std::string console_line(Level level, std::string_view text, bool colour) {
  std::string_view prefix;
  std::string_view paint;
  switch (level) {
    case Level::kDebug:
      prefix = "debug: ";
      paint = "\033[2m";
      break;
    case Level::kInfo:
      break;
    case Level::kWarning:
      prefix = "warning: ";
      paint = "\033[33m";
      break;
    case Level::kError:
      // Error::report() says "error (...)" itself.
      prefix = text.starts_with("error") ? "" : "error: ";
      paint = "\033[31m";
      break;
  }
  std::string line;
  if (colour) line += paint;
  line += prefix;
  line += text;
  if (colour && !paint.empty()) line += "\033[0m";
  return line + "\n";
}

}  // namespace

struct Log::Impl {
  Impl(int its_rank, bool prints)
      : rank(its_rank), console(prints), colour(prints && console_has_colour()) {}

  // One call, so that lines of several ranks on one terminal do not mix.
  void to_console(std::string_view text) const {
    if (console) std::fwrite(text.data(), 1, text.size(), stderr);
  }

  int rank;
  bool console;
  bool colour;
  std::mutex mutex;  // of `file`, which open() replaces
  std::shared_ptr<spdlog::logger> file;
};

Log::Log(int rank, bool console, const std::filesystem::path& file)
    : impl_(std::make_unique<Impl>(rank, console)) {
  if (!file.empty()) open(file);
}

Log::~Log() { flush(); }

void Log::open(const std::filesystem::path& file) {
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  if (error) {
    errno = error.value();
    throw_errno("creating the folder", file.parent_path().native());
  }
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.native());
    auto logger = std::make_shared<spdlog::logger>("trireme", std::move(sink));
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z rank " + std::to_string(impl_->rank) + " %l: %v");
    logger->set_level(spdlog::level::debug);
    logger->flush_on(spdlog::level::info);
    // A full disk must not stop a run because of its log; the console has every line of the root
    // anyway.
    logger->set_error_handler([](const std::string&) {});
    const std::lock_guard lock(impl_->mutex);
    impl_->file = std::move(logger);
  } catch (const spdlog::spdlog_ex& failure) {
    Error wrapped(ErrorKind::kIo, "cannot open the log file " + file.native(),
                  "choose a folder that you may write to");
    wrapped.cause = failure.what();
    throw wrapped;
  }
}

void Log::write(Level level, std::string_view text) {
  if (level != Level::kDebug) impl_->to_console(console_line(level, text, impl_->colour));
  record(level, text);
}

void Log::record(Level level, std::string_view text) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->file)
    impl_->file->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

void Log::print(std::string_view text) { impl_->to_console(text); }

void Log::flush() {
  std::fflush(stderr);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->file) impl_->file->flush();
}

}  // namespace trireme::obs
