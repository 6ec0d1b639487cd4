#include "memory/scratch_file.hpp"

#include "trireme/base/error.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace trireme::memory {

namespace {

bool unsupported(int code) {
  return code == EOPNOTSUPP || code == ENOSYS || code == EISDIR;
}

// The hook's errno, or what `call` returns; through interruptions.
template <class Call>
int ask_and(const TierFaultHook& hook, std::string_view name, Call call) {
  if (const int fault = hook ? hook(name) : 0; fault > 0) {
    errno = fault;
    return -1;
  }
  int result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Returns -1 with errno.
int open_unnamed(const std::filesystem::path& folder, int flags) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 || !unsupported(errno)) return fd;
  std::string path = (folder / "trireme-tier-XXXXXX").string();
  const int named = ::mkostemp(path.data(), O_CLOEXEC | flags);
  const int code = errno;
  if (named >= 0 || code == EINVAL) ::unlink(path.c_str());
  errno = code;
  return named;
}

std::uint64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return 0;
  return status.f_bavail * status.f_frsize;
}

[[noreturn]] void throw_no_room(const TierFileOptions& options, std::uint64_t bytes, int code) {
  Error error(
      ErrorKind::kIo,
      fmt::format("cannot reserve {} in {} for the {}: {} are free",
                  human(Bytes(static_cast<std::int64_t>(bytes))), options.folder.string(),
                  options.label,
                  human(Bytes(static_cast<std::int64_t>(free_bytes(options.folder))))),
      "point the offload folder at a larger local disk, use more ranks or nodes, or offload "
      "less");
  error.cause = fmt::format("{} (errno {})", std::strerror(code), code);
  throw error;
}

FileDescriptor open_in(const TierFileOptions& options, bool& direct) {
  std::error_code failure;
  std::filesystem::create_directories(options.folder, failure);
  if (failure) {
    errno = failure.value();
    throw_errno("make the folder", options.folder.string());
  }
  direct = true;
  int fd = ask_and(options.hook, "create", [&] { return open_unnamed(options.folder, O_DIRECT); });
  if (fd < 0 && errno == EINVAL) {
    direct = false;
    fd = open_unnamed(options.folder, 0);
  }
  if (fd < 0 && (errno == ENOSPC || errno == EDQUOT)) throw_no_room(options, 0, errno);
  if (fd < 0) throw_errno(fmt::format("create the {} in", options.label), options.folder.string());
  return FileDescriptor(fd);
}

// Returns false where space cannot be reserved, only a length set.
bool reserve(const TierFileOptions& options, int fd, std::uint64_t bytes) {
  const auto length = static_cast<off_t>(bytes);
  if (ask_and(options.hook, "allocate", [&] { return ::fallocate(fd, 0, 0, length); }) == 0) {
    return true;
  }
  if (!unsupported(errno)) throw_no_room(options, bytes, errno);
  if (free_bytes(options.folder) < bytes) throw_no_room(options, bytes, ENOSPC);
  if (::ftruncate(fd, length) != 0) throw_no_room(options, bytes, errno);
  return false;
}

std::string no_direct(const TierFileOptions& options) {
  return fmt::format("{} has no direct I/O: the {} passes through the page cache",
                     options.folder.string(), options.label);
}

}  // namespace

ScratchFile make_scratch_file(const TierFileOptions& options, std::uint64_t bytes) {
  ScratchFile file;
  file.fd = open_in(options, file.direct);
  if (!file.direct) file.notes.push_back(no_direct(options));
  if (!reserve(options, file.fd.get(), bytes)) {
    file.notes.push_back(fmt::format("{} cannot reserve space: the {} may find the disk full later",
                                     options.folder.string(), options.label));
  }
  return file;
}

void leave_direct(ScratchFile& file, const TierFileOptions& options) {
  if (!file.direct) return;
  ::fcntl(file.fd.get(), F_SETFL, ::fcntl(file.fd.get(), F_GETFL) & ~O_DIRECT);
  file.direct = false;
  file.notes.push_back(no_direct(options));
}

}  // namespace trireme::memory
