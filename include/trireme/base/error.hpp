// The one error type. Its kind says the consequence for the run and fixes the exit code that job
// scripts read.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

enum class ErrorKind {
  kUsage,        // wrong command line
  kConfig,       // the request itself is wrong: stop
  kCorrupt,      // stored bytes are damaged: fall back to the previous checkpoint
  kInternal,     // broken invariant: our bug
  kDevice,       // an accelerator failed: requeue elsewhere
  kIo,           // a read or write failed: requeue, limited
  kPeerLost,     // another rank died
  kTimeout,      // another rank did not arrive in time
  kOutOfMemory,  // lower the setting that the message names
  kEnvironment,  // the machine lacks something
};

// Returns the process exit code of a kind (DESIGN section 7; sysexits where one fits).
int exit_code(ErrorKind kind);

// The process exit code after a stop signal, once the checkpoint is committed. Not an error.
inline constexpr int kExitPreempted = 85;

// Returns "config", "io", ... as printed in messages and reports.
std::string_view name_of(ErrorKind kind);

struct Error : std::runtime_error {
  Error(ErrorKind kind, std::string message, std::string hint = {},
        std::source_location where = std::source_location::current());

  // Returns the text for a person: message, hint, cause, rank and place, over several lines.
  std::string report() const;

  ErrorKind kind;
  std::string message;
  std::string hint;   // what to do about it
  std::string cause;  // the lower-level error, if any
  std::string host;   // filled in by the boundary that knows it
  long rank = -1;     // -1 while unknown
  long step = -1;     // -1 outside the training loop
  bool everywhere =
      false;  // every rank throws this same error: rank 0 prints it, all leave in order
  std::source_location where;
};

// Throws Internal when `condition` is false: for invariants, not for user input.
void ensure(bool condition, std::string_view what,
            std::source_location where = std::source_location::current());

// Throws Io with errno's text; call it right after the failing system call.
[[noreturn]] void throw_errno(std::string_view operation, std::string_view path,
                              std::source_location where = std::source_location::current());

}  // namespace trireme
