#include "append.hpp"

#include "trireme/base/error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace trireme::obs::detail {

FileDescriptor open_to_append(const std::filesystem::path& path, int flags) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | flags, 0666));
  const bool taken = !file && errno == EEXIST && (flags & O_EXCL) != 0;
  if (!file && !taken) throw_errno("opening", path.native());
  return file;
}

void append_whole(int file, std::string_view text, const std::filesystem::path& path) {
  struct stat before {};
  const bool regular = ::fstat(file, &before) == 0 && S_ISREG(before.st_mode);
  ssize_t written = -1;
  do {
    written = ::write(file, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) return;
  if (written >= 0) {
    // The rest tells why the first call stopped short.
    const auto rest = text.substr(static_cast<std::size_t>(written));
    if (::write(file, rest.data(), rest.size()) == static_cast<ssize_t>(rest.size())) return;
  }
  const int reason = errno;
  if (regular && ::ftruncate(file, before.st_size) != 0) {
    // The torn piece stays; readers drop it. The first error is the one to tell.
  }
  errno = reason;
  throw_errno("writing", path.native());
}

}  // namespace trireme::obs::detail
