#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace trireme {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return 2;
    case ErrorKind::kConfig:
      return 64;
    case ErrorKind::kCorrupt:
      return 65;
    case ErrorKind::kEnvironment:
      return 69;
    case ErrorKind::kInternal:
      return 70;
    case ErrorKind::kDevice:
      return 71;
    case ErrorKind::kIo:
      return 74;
    case ErrorKind::kPeerLost:
    case ErrorKind::kTimeout:
      return 75;
    case ErrorKind::kOutOfMemory:
      return 79;
  }
  return 70;
}

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "usage";
    case ErrorKind::kConfig:
      return "config";
    case ErrorKind::kCorrupt:
      return "corrupt";
    case ErrorKind::kEnvironment:
      return "environment";
    case ErrorKind::kInternal:
      return "internal";
    case ErrorKind::kDevice:
      return "device";
    case ErrorKind::kIo:
      return "io";
    case ErrorKind::kPeerLost:
      return "peer lost";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kOutOfMemory:
      return "out of memory";
  }
  return "internal";
}

Error::Error(ErrorKind kind, std::string message, std::string hint, std::source_location where)
    : std::runtime_error(message),
      kind(kind),
      message(std::move(message)),
      hint(std::move(hint)),
      where(where) {}

std::string Error::report() const {
  std::string text = fmt::format("error ({}", name_of(kind));
  if (rank >= 0) text += fmt::format(", rank {}", rank);
  if (!host.empty()) text += fmt::format(" on {}", host);
  if (step >= 0) text += fmt::format(", step {}", step);
  text += "): " + message;
  if (!cause.empty()) text += "\n  cause: " + cause;
  if (!hint.empty()) text += "\n  hint: " + hint;
  // A place in the source helps only where the fault may be ours.
  if (kind == ErrorKind::kInternal) {
    text += fmt::format("\n  at {}:{}", where.file_name(), where.line());
  }
  return text;
}

void ensure(bool condition, std::string_view what, std::source_location where) {
  if (!condition) {
    throw Error(ErrorKind::kInternal, fmt::format("broken invariant: {}", what),
                "this is a bug in trireme; please report it with this message", where);
  }
}

void throw_errno(std::string_view operation, std::string_view path, std::source_location where) {
  const int code = errno;
  std::string hint;
  if (code == ENOSPC || code == EDQUOT)
    hint = "free some space, or point run.dir at another file system";
  if (code == EACCES || code == EROFS || code == EPERM)
    hint = "choose a folder that you may write to";
  throw Error(ErrorKind::kIo,
              fmt::format("{} {}: {} (errno {})", operation, path, std::strerror(code), code),
              std::move(hint), where);
}

}  // namespace trireme
