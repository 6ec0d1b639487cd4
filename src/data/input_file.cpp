#include "data/input_file.hpp"

#include "trireme/base/error.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trireme::data::detail {

namespace {

[[noreturn]] void refuse(std::string why) { throw Error(ErrorKind::kConfig, std::move(why)); }

}  // namespace

// Looked at before it is opened: opening a named pipe would wait for a writer.
InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) {
    refuse(S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
  }
  file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) refuse(std::strerror(errno));
  if (::fstat(file_.get(), &status) != 0) refuse(std::strerror(errno));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got =
        ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("pread", path_.string());
    if (got == 0) {
      throw Error(ErrorKind::kIo,
                  fmt::format("{} has become shorter while in use: no byte at offset {}",
                              path_.string(), offset),
                  "restore the file and resume from the last checkpoint");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace trireme::data::detail
