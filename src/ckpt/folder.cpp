#include "ckpt/folder.hpp"

#include "trireme/base/error.hpp"

#include "ckpt/format.hpp"
#include "ckpt/manifest.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <random>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

bool is_trash(std::string_view name) { return name.starts_with(".trash-"); }

// Returns the step's folder name when `name` is that name followed by `mark` and an id.
std::optional<std::string> base_of(std::string_view name, std::string_view mark) {
  const std::size_t at = name.find(mark);
  if (at == name.npos || !step_of(name.substr(0, at))) return std::nullopt;
  return std::string(name.substr(0, at));
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

// std::filesystem's own exception says nothing of consequences.
template <class Action>
void as_io_errors(Action action) {
  try {
    action();
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::kIo, error.what());
  }
}

// For remains that the next save looks for anyway.
void try_to_discard(const Io& io, const fs::path& path) noexcept {
  try {
    discard(io, path);
  } catch (const std::exception&) {
  }
}

void discard_remains(const Io& io, const fs::path& folder) {
  for (const std::string& name : names_in(folder)) {
    std::error_code ignored;
    if (is_trash(name)) fs::remove_all(folder / name, ignored);
    if (!base_of(name, ".tmp-") && !base_of(name, ".old-")) continue;
    if (!fs::is_directory(folder / name, ignored)) continue;
    const FileDescriptor lock = lock_folder(folder / name);
    discard(io, folder / name);
  }
}

}  // namespace

void discard(const Io& io, const fs::path& path) {
  const fs::path trash =
      path.parent_path() / fmt::format(".trash-{}-{}", random_id(), path.filename().string());
  io.rename("discard", path, trash);
  as_io_errors([&] { fs::remove_all(trash); });
}

bool is_remains(std::string_view name) {
  return is_trash(name) || base_of(name, ".tmp-") || base_of(name, ".old-");
}

FileDescriptor lock_folder(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno("open", path.string());
  FileDescriptor folder(fd);
  // Where the file system has no locks, a dead writer cannot be told from a live one and counts as
  // dead.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorKind::kEnvironment, fmt::format("another job is writing {}", path.string()),
                "let one job at a time save into a run's folder, or give this run another name");
  }
  return folder;
}

Draft::Draft(const Io& io, const fs::path& folder, Step step)
    : io_(io), folder_(folder), id_(random_id()), final_path_(folder / step_folder(step)) {
  std::error_code ignored;
  if (!fs::is_directory(folder_, ignored)) {
    as_io_errors([&] { fs::create_directories(folder_); });
    io_.sync_folder("fsync-parent", fs::absolute(folder_ / "..").lexically_normal());
  }
  recover(folder_);
  discard_remains(io_, folder_);
  const fs::path path = folder_ / fmt::format("{}.tmp-{}", step_folder(step), id_);
  io_.make_folder(path);
  path_ = path;
  lock_ = lock_folder(path_);
}

Draft::~Draft() {
  if (committed_ || path_.empty()) return;
  try_to_discard(Io({}), path_);
}

void Draft::write_manifest(const std::string& text) const {
  const fs::path tmp = path_ / fmt::format("{}.tmp", kManifestFile);
  bool direct = false;
  const FileDescriptor file = io_.open("create", tmp, O_WRONLY | O_CREAT | O_EXCL);
  io_.write("write-manifest", file.get(), std::as_bytes(std::span(text)), 0, tmp, direct);
  io_.sync("fsync-manifest", file.get(), tmp);
  io_.rename("rename-manifest", tmp, path_ / kManifestFile);
}

// At every moment either the old or the new checkpoint stands under the final name, or, on file
// systems that cannot exchange, the old one under a name that recover() knows.
void Draft::replace() {
  if (io_.exchange("exchange", path_, final_path_)) {
    committed_ = true;
    io_.sync_folder("fsync-parent", folder_);
    try_to_discard(io_, path_);
    return;
  }
  const fs::path old = fs::path(final_path_).concat(".old-" + id_);
  io_.rename("set-aside", final_path_, old);
  io_.rename("commit", path_, final_path_);
  committed_ = true;
  io_.sync_folder("fsync-parent", folder_);
  try_to_discard(io_, old);
}

void Draft::commit(const std::string& manifest) {
  write_manifest(manifest);
  io_.sync_folder("fsync-folder", path_);
  std::error_code ignored;
  if (fs::exists(final_path_, ignored)) return replace();
  io_.rename("commit", path_, final_path_);
  committed_ = true;
  io_.sync_folder("fsync-parent", folder_);
}

void recover(const fs::path& folder) noexcept {
  try {
    for (const std::string& name : names_in(folder)) {
      const auto base = base_of(name, ".old-");
      std::error_code ignored;
      if (base && !fs::exists(folder / *base)) fs::rename(folder / name, folder / *base, ignored);
    }
  } catch (const std::exception&) {
  }
}

bool is_complete(const fs::path& checkpoint) {
  try {
    read_manifest(checkpoint);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> prune(const Io& io, const fs::path& folder, int keep,
                               const fs::path& newest) {
  std::vector<std::string> problems;
  int complete = 0;
  if (keep <= 0) return problems;
  for (const fs::path& checkpoint : list(folder)) {
    if (complete >= keep && checkpoint != newest) {
      try {
        discard(io, checkpoint);
      } catch (const std::exception& error) {
        problems.push_back(
            fmt::format("{} could not be removed: {}", checkpoint.string(), error.what()));
      }
    } else if (is_complete(checkpoint)) {
      ++complete;
    }
  }
  return problems;
}

}  // namespace trireme::ckpt
