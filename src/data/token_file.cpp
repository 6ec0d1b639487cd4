#include "data/token_file.hpp"

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

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  return "not a regular file";
}

// Fills `bytes` or throws; interrupted and partial reads go on.
void read_fully(int file, std::span<std::byte> bytes, std::uint64_t offset,
                const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("pread", path.string());
    if (got == 0) {
      throw Error(ErrorKind::kIo,
                  fmt::format("{} has become shorter while in use: no byte at offset {}",
                              path.string(), offset),
                  "restore the file and resume from the last checkpoint");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace

// Looked at before it is opened: opening a named pipe would wait for a writer.
ByteFile::ByteFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(std::string(kind_of(status.st_mode)));
  file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) refuse(std::strerror(errno));
  if (::fstat(file_.get(), &status) != 0) refuse(std::strerror(errno));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

// The bytes are read into the last eighth of `tokens` and widened from the front, which never
// overtakes them: token i ends at byte 8 i + 7, and the byte of token i + 1 lies behind that until
// i is the last.
void ByteFile::read(std::uint64_t first, std::span<std::int64_t> tokens) const {
  const std::span<std::byte> packed = std::as_writable_bytes(tokens).last(tokens.size());
  read_fully(file_.get(), packed, first, path_);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = std::to_integer<std::int64_t>(packed[i]);
  }
}

}  // namespace trireme::data::detail
