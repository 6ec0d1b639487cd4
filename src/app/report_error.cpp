#include "report_error.hpp"

#include "trireme/base/environment.hpp"

#include <unistd.h>

#include <new>
#include <string>

namespace trireme::app {

Error as_error(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) {
    Error copy = *error;
    if (copy.host.empty() && !copy.everywhere && copy.kind != ErrorKind::kUsage &&
        copy.kind != ErrorKind::kConfig)
      copy.host = host_name();
    return copy;
  }
  const std::string text = exception.what();
  const bool memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr ||
                      text.find("can't allocate memory") != std::string::npos;
  if (memory) {
    Error error(ErrorKind::kOutOfMemory, "an allocation was refused",
                "lower train.micro_batch_size, use more ranks, or a smaller model");
    error.cause = text;
    return error;
  }
  return Error(ErrorKind::kInternal, text,
               "this is a bug in trireme or in the model; please report it");
}

void print_error(const Error& error) {
  const std::string text = "trireme: " + error.report() + "\n";
  // One system call: lines of several ranks must not mix.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace trireme::app
