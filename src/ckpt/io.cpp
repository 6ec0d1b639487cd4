#include "ckpt/io.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/format.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace trireme::ckpt {

namespace {

bool unsupported(int code) {
  return code == EINVAL || code == ENOTSUP || code == EOPNOTSUPP || code == ENOSYS || code == EROFS;
}

template <class Call>
auto without_interrupts(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

void Io::before(std::string_view call, const std::filesystem::path& path) const {
  errno = ask(call, false);
  if (errno > 0) throw_errno(call, path.string());
}

bool Io::fails(std::string_view call) const {
  errno = ask(call, false);
  return errno > 0;
}

void Io::make_folder(const std::filesystem::path& path) const {
  around("make-folder", path, [&] {
    if (::mkdir(path.c_str(), 0777) != 0) throw_errno("mkdir", path.string());
  });
}

int Io::try_open(std::string_view call, const std::filesystem::path& path, int flags) const {
  const int fd = without_interrupts(
      [&] { return fails(call) ? -1 : ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (fd < 0) return -errno;
  after(call);
  return fd;
}

FileDescriptor Io::open(std::string_view call, const std::filesystem::path& path, int flags) const {
  const int fd = try_open(call, path, flags);
  errno = -fd;
  if (fd < 0) throw_errno("open", path.string());
  return FileDescriptor(fd);
}

FileDescriptor Io::open_direct(const std::filesystem::path& path, bool& direct) const {
  const int fd = try_open("open", path, O_WRONLY | O_DIRECT);
  direct = fd != -EINVAL;
  if (!direct) return open("open", path, O_WRONLY);
  errno = -fd;
  if (fd < 0) throw_errno("open", path.string());
  return FileDescriptor(fd);
}

void Io::allocate(const std::filesystem::path& path, std::uint64_t bytes) const {
  const FileDescriptor file = open("open", path, O_WRONLY);
  around("allocate", path, [&] {
    const auto length = static_cast<off_t>(bytes);
    if (without_interrupts([&] { return ::fallocate(file.get(), 0, 0, length); }) == 0) return;
    if (!unsupported(errno)) throw_errno("reserve space for", path.string());
    if (::ftruncate(file.get(), length) != 0) throw_errno("set the length of", path.string());
  });
}

std::ptrdiff_t Io::write_once(std::string_view call, int fd, std::span<const std::byte> bytes,
                              std::uint64_t offset) const {
  const int fault = ask(call, false);
  if (fault > 0) {
    errno = fault;
    return -1;
  }
  // Half of it, but whole blocks, as a real short direct write would be.
  if (fault == kShortWrite)
    bytes = bytes.first(std::max(align_down(bytes.size() / 2), std::uint64_t{1}));
  const auto written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (written >= 0) after(call);
  return written;
}

void Io::write(std::string_view call, int fd, std::span<const std::byte> bytes,
               std::uint64_t offset, const std::filesystem::path& path, bool& direct) const {
  int without_progress = 0;
  while (!bytes.empty()) {
    const std::ptrdiff_t written = write_once(call, fd, bytes, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && direct) {
      direct = false;
      if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_DIRECT) != 0)
        throw_errno("fcntl", path.string());
      continue;
    }
    if (written < 0)
      throw_errno(fmt::format("write {} bytes at {} of", bytes.size(), offset), path.string());
    // Direct writes must stay on block borders, so a torn block is written again.
    std::size_t done = static_cast<std::size_t>(written);
    if (direct && done < bytes.size()) done = align_down(done);
    without_progress = done == 0 ? without_progress + 1 : 0;
    if (without_progress > 8) {
      errno = EIO;
      throw_errno(fmt::format("write (which made no progress) at {} of", offset), path.string());
    }
    bytes = bytes.subspan(done);
    offset += done;
  }
}

bool Io::sync(std::string_view call, int fd, const std::filesystem::path& path) const {
  const int status = without_interrupts([&] { return fails(call) ? -1 : ::fsync(fd); });
  if (status != 0 && unsupported(errno)) return false;
  // Never again after a failure: the kernel may have dropped the dirty pages, and a second fsync
  // would succeed.
  if (status != 0) throw_errno("fsync", path.string());
  after(call);
  return true;
}

bool Io::sync_folder(std::string_view call, const std::filesystem::path& path) const {
  const int fd =
      without_interrupts([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) throw_errno("open", path.string());
  const FileDescriptor folder(fd);
  return sync(call, folder.get(), path);
}

void Io::rename(std::string_view call, const std::filesystem::path& from,
                const std::filesystem::path& to) const {
  around(call, from, [&] {
    if (::rename(from.c_str(), to.c_str()) != 0)
      throw_errno(fmt::format("rename {} to", from.string()), to.string());
  });
}

bool Io::exchange(std::string_view call, const std::filesystem::path& a,
                  const std::filesystem::path& b) const {
  errno = ask(call, false);
  const bool done =
      errno == 0 && ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
  if (done) {
    after(call);
    return true;
  }
  if (unsupported(errno)) return false;
  throw_errno(fmt::format("exchange {} with", a.string()), b.string());
}

FileDescriptor open_to_read(const std::filesystem::path& path) {
  const int fd = without_interrupts([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    throw Error(ErrorKind::kCorrupt, fmt::format("{} is missing", path.string()));
  }
  if (fd < 0) throw_errno("open", path.string());
  return FileDescriptor(fd);
}

std::uint64_t size_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno("stat", path.string());
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorKind::kCorrupt, fmt::format("{} is not a file", path.string()));
  return static_cast<std::uint64_t>(status.st_size);
}

void read_exactly(int fd, std::span<std::byte> bytes, std::uint64_t offset,
                  const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const auto got = without_interrupts(
        [&] { return ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (got < 0)
      throw_errno(fmt::format("read {} bytes at {} of", bytes.size(), offset), path.string());
    if (got == 0)
      throw Error(ErrorKind::kCorrupt, fmt::format("{} ends at byte {}", path.string(), offset));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::string read_text(const std::filesystem::path& path, std::uint64_t most) {
  const FileDescriptor file = open_to_read(path);
  const std::uint64_t size = size_of(file.get(), path);
  if (size > most) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{} has {} bytes, far more than it could need", path.string(), size));
  }
  std::string text(size, '\0');
  read_exactly(file.get(), std::as_writable_bytes(std::span(text)), 0, path);
  return text;
}

}  // namespace trireme::ckpt
