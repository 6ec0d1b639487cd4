#include "trireme/train/run_folder.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/handle.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

namespace trireme::train {

namespace fs = std::filesystem;

Resume Resume::parse(const std::string& text) {
  if (text == "none" || text.empty()) return {Mode::kNone, {}};
  if (text == "auto") return {Mode::kAuto, {}};
  return {Mode::kPath, text};
}

RunFolder::RunFolder(const config::Run& run) : root(fs::path(run.dir) / run.name) {}

fs::path RunFolder::log(int rank) const {
  return root / "log" / fmt::format("rank-{:05}.log", rank);
}

bool RunFolder::holds_run() const { return fs::exists(metrics()) || fs::exists(checkpoints()); }

void RunFolder::prepare(const Resume& resume) const {
  if (resume.mode == Resume::Mode::kNone && holds_run()) {
    throw Error(ErrorKind::kConfig, fmt::format("{} already holds a run", root.string()),
                "continue it with --resume auto, or choose another run.name");
  }
  std::error_code code;
  fs::create_directories(root, code);
  const fs::path probe = root / ".writable";
  if (!code) {
    const FileDescriptor file(::open(probe.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644));
    if (!file) code = std::error_code(errno, std::generic_category());
    ::unlink(probe.c_str());
  }
  if (code) {
    throw Error(
        ErrorKind::kIo,
        fmt::format("the run folder {} cannot be written: {}", root.string(), code.message()),
        "choose a folder that you may write to with run.dir");
  }
}

FileDescriptor RunFolder::lock() const {
  const fs::path path = root / ".lock";
  FileDescriptor file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  if (!file) throw_errno("open", path.string());
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorKind::kConfig, fmt::format("another job is running in {}", root.string()),
                "wait for it, stop it, or choose another run.name");
  }
  return file;
}

}  // namespace trireme::train
