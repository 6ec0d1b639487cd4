#include "recorded_files.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace trireme::testing {

namespace {

namespace fs = std::filesystem;
using Kind = FileOperation::Kind;

// One recording at a time. Calls outside the folder pass through.
struct Recorder {
  std::mutex mutex;
  std::string root;
  std::map<int, std::string> paths;  // of open descriptors below root
  std::vector<FileOperation> operations;
};
std::atomic<Recorder*> active = nullptr;

// Returns the path below the root, or nothing. Relative to `at` when it is a folder's descriptor.
bool below(const Recorder& recorder, const std::string& path, std::string& relative) {
  const std::string clean = fs::path(path).lexically_normal().string();
  if (clean != recorder.root && !clean.starts_with(recorder.root + "/")) return false;
  relative = clean.size() > recorder.root.size() ? clean.substr(recorder.root.size() + 1) : "";
  return true;
}

std::string full_path(const Recorder& recorder, int at, const char* path) {
  if (path[0] == '/' || at == AT_FDCWD) return fs::absolute(path).string();
  const auto folder = recorder.paths.find(at);
  if (folder == recorder.paths.end()) return path;
  return recorder.root + "/" + folder->second + "/" + path;
}

template <class Function>
Function* real(const char* name) {
  void* symbol = ::dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) std::abort();
  return reinterpret_cast<Function*>(symbol);
}

// Notes one call that succeeded.
template <class Note>
void note(Note action) {
  Recorder* recorder = active.load();
  if (recorder == nullptr) return;
  const int before = errno;
  {
    const std::lock_guard lock(recorder->mutex);
    action(*recorder);
  }
  errno = before;
}

void note_path(Kind kind, int at, const char* path, std::uint64_t offset = 0) {
  note([&](Recorder& recorder) {
    std::string relative;
    if (below(recorder, full_path(recorder, at, path), relative))
      recorder.operations.push_back({kind, relative, {}, offset, {}});
  });
}

void note_descriptor(Kind kind, int fd, std::uint64_t offset, std::string bytes) {
  note([&](Recorder& recorder) {
    const auto found = recorder.paths.find(fd);
    if (found != recorder.paths.end())
      recorder.operations.push_back({kind, found->second, {}, offset, std::move(bytes)});
  });
}

// A renamed file keeps its descriptors, which must go by its new name.
void rename_descriptors(Recorder& recorder, const std::string& from, const std::string& to) {
  for (auto& [fd, path] : recorder.paths) {
    if (path == from || path.starts_with(from + "/")) path = to + path.substr(from.size());
  }
}

void note_rename(Kind kind, int from_at, const char* from, int to_at, const char* to) {
  note([&](Recorder& recorder) {
    std::string a;
    std::string b;
    if (!below(recorder, full_path(recorder, from_at, from), a)) return;
    if (!below(recorder, full_path(recorder, to_at, to), b)) return;
    recorder.operations.push_back({kind, a, b, 0, {}});
    if (kind == Kind::kExchange) rename_descriptors(recorder, b, "/aside");
    rename_descriptors(recorder, a, b);
    if (kind == Kind::kExchange) rename_descriptors(recorder, "/aside", a);
  });
}

int open_and_note(int at, const char* path, int flags, mode_t mode) {
  static auto* const call = real<int(int, const char*, int, mode_t)>("openat64");
  Recorder* recorder = active.load();
  const bool existed =
      recorder != nullptr && (flags & O_CREAT) != 0 && ::faccessat(at, path, F_OK, 0) == 0;
  const int fd = call(at, path, flags, mode);
  if (fd < 0) return fd;
  note([&](Recorder& it) {
    std::string relative;
    if (!below(it, full_path(it, at, path), relative)) return;
    it.paths[fd] = relative;
    if ((flags & O_CREAT) != 0 && !existed)
      it.operations.push_back({Kind::kCreate, relative, {}, 0, {}});
    if ((flags & O_TRUNC) != 0 && existed)
      it.operations.push_back({Kind::kResize, relative, {}, 0, {}});
  });
  return fd;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

std::string bytes_at(const void* data, ssize_t count) {
  return {static_cast<const char*>(data), static_cast<std::size_t>(count)};
}

}  // namespace

}  // namespace trireme::testing

// The calls themselves. Both names of each, since either may be the one that a library was built
// with.
using trireme::testing::FileOperation;
namespace recorded = trireme::testing;

extern "C" {

#define TRIREME_OPEN(name)                                       \
  int name(const char* path, int flags, ...) {                   \
    va_list arguments;                                           \
    va_start(arguments, flags);                                  \
    const mode_t mode = recorded::mode_of(flags, arguments);     \
    va_end(arguments);                                           \
    return recorded::open_and_note(AT_FDCWD, path, flags, mode); \
  }
TRIREME_OPEN(open)
TRIREME_OPEN(open64)
#undef TRIREME_OPEN

#define TRIREME_OPENAT(name)                                 \
  int name(int at, const char* path, int flags, ...) {       \
    va_list arguments;                                       \
    va_start(arguments, flags);                              \
    const mode_t mode = recorded::mode_of(flags, arguments); \
    va_end(arguments);                                       \
    return recorded::open_and_note(at, path, flags, mode);   \
  }
TRIREME_OPENAT(openat)
#undef TRIREME_OPENAT

int close(int fd) {
  static auto* const call = recorded::real<int(int)>("close");
  recorded::note([&](recorded::Recorder& recorder) { recorder.paths.erase(fd); });
  return call(fd);
}

#define TRIREME_PWRITE(name)                                                  \
  ssize_t name(int fd, const void* data, size_t count, off_t offset) {        \
    static auto* const call =                                                 \
        recorded::real<ssize_t(int, const void*, size_t, off_t)>("pwrite64"); \
    const ssize_t written = call(fd, data, count, offset);                    \
    if (written > 0)                                                          \
      recorded::note_descriptor(FileOperation::Kind::kWrite, fd,              \
                                static_cast<std::uint64_t>(offset),           \
                                recorded::bytes_at(data, written));           \
    return written;                                                           \
  }
TRIREME_PWRITE(pwrite)
TRIREME_PWRITE(pwrite64)
#undef TRIREME_PWRITE

#define TRIREME_RESIZE(name)                                                  \
  int name(int fd, off_t length) {                                            \
    static auto* const call = recorded::real<int(int, off_t)>("ftruncate64"); \
    const int status = call(fd, length);                                      \
    if (status == 0)                                                          \
      recorded::note_descriptor(FileOperation::Kind::kResize, fd,             \
                                static_cast<std::uint64_t>(length), {});      \
    return status;                                                            \
  }
TRIREME_RESIZE(ftruncate)
TRIREME_RESIZE(ftruncate64)
#undef TRIREME_RESIZE

#define TRIREME_ALLOCATE(name)                                                            \
  int name(int fd, int mode, off_t offset, off_t length) {                                \
    static auto* const call = recorded::real<int(int, int, off_t, off_t)>("fallocate64"); \
    const int status = call(fd, mode, offset, length);                                    \
    if (status == 0)                                                                      \
      recorded::note_descriptor(FileOperation::Kind::kResize, fd,                         \
                                static_cast<std::uint64_t>(offset + length), {});         \
    return status;                                                                        \
  }
TRIREME_ALLOCATE(fallocate)
TRIREME_ALLOCATE(fallocate64)
#undef TRIREME_ALLOCATE

#define TRIREME_SYNC(name)                                                             \
  int name(int fd) {                                                                   \
    static auto* const call = recorded::real<int(int)>(#name);                         \
    const int status = call(fd);                                                       \
    if (status == 0) recorded::note_descriptor(FileOperation::Kind::kSync, fd, 0, {}); \
    return status;                                                                     \
  }
TRIREME_SYNC(fsync)
TRIREME_SYNC(fdatasync)
#undef TRIREME_SYNC

int mkdir(const char* path, mode_t mode) {
  static auto* const call = recorded::real<int(const char*, mode_t)>("mkdir");
  const int status = call(path, mode);
  if (status == 0) recorded::note_path(FileOperation::Kind::kMakeFolder, AT_FDCWD, path);
  return status;
}

int rename(const char* from, const char* to) {
  static auto* const call = recorded::real<int(const char*, const char*)>("rename");
  const int status = call(from, to);
  if (status == 0)
    recorded::note_rename(FileOperation::Kind::kRename, AT_FDCWD, from, AT_FDCWD, to);
  return status;
}

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  static auto* const call =
      recorded::real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  const int status = call(from_at, from, to_at, to, flags);
  const auto kind =
      flags == RENAME_EXCHANGE ? FileOperation::Kind::kExchange : FileOperation::Kind::kRename;
  if (status == 0) recorded::note_rename(kind, from_at, from, to_at, to);
  return status;
}

int unlink(const char* path) {
  static auto* const call = recorded::real<int(const char*)>("unlink");
  const int status = call(path);
  if (status == 0) recorded::note_path(FileOperation::Kind::kRemove, AT_FDCWD, path);
  return status;
}

int unlinkat(int at, const char* path, int flags) {
  static auto* const call = recorded::real<int(int, const char*, int)>("unlinkat");
  const int status = call(at, path, flags);
  if (status == 0) recorded::note_path(FileOperation::Kind::kRemove, at, path);
  return status;
}

int rmdir(const char* path) {
  static auto* const call = recorded::real<int(const char*)>("rmdir");
  const int status = call(path);
  if (status == 0) recorded::note_path(FileOperation::Kind::kRemove, AT_FDCWD, path);
  return status;
}

int remove(const char* path) {
  static auto* const call = recorded::real<int(const char*)>("remove");
  const int status = call(path);
  if (status == 0) recorded::note_path(FileOperation::Kind::kRemove, AT_FDCWD, path);
  return status;
}

}  // extern "C"

namespace trireme::testing {

namespace {

constexpr std::uint64_t kBlock = 4096;

struct Node;
using NodePtr = std::shared_ptr<Node>;
using Names = std::map<std::string, NodePtr>;

// A file or a folder: what is durable, and what the running system sees.
struct Node {
  bool folder = false;
  Names durable_names;
  Names names;
  std::string durable;
  std::string data;
  std::vector<const FileOperation*> unsynced;
};

struct NameChange {
  Node* folder;
  std::string name;
  NodePtr to;  // none: the name goes
};
// One call's changes, which arrive together.
using NameChanges = std::vector<NameChange>;

class Disk {
 public:
  explicit Disk(const fs::path& before) : root_(read(before)) {}

  void apply(const FileOperation& operation) {
    switch (operation.kind) {
      case Kind::kMakeFolder:
      case Kind::kCreate: {
        auto node = std::make_shared<Node>();
        node->folder = operation.kind == Kind::kMakeFolder;
        return change({at(operation.path, node)});
      }
      case Kind::kRemove:
        return change({at(operation.path, nullptr)});
      case Kind::kRename:
        return change({at(operation.path, nullptr), at(operation.other, find(operation.path))});
      case Kind::kExchange:
        return change(
            {at(operation.path, find(operation.other)), at(operation.other, find(operation.path))});
      case Kind::kWrite:
      case Kind::kResize: {
        const NodePtr node = find(operation.path);
        write(operation, node->data, [] { return true; });
        node->unsynced.push_back(&operation);
        return;
      }
      case Kind::kSync:
        return sync(find(operation.path));
    }
  }

  void build(const Luck& luck, const fs::path& target) {
    const std::size_t arrived = std::min(luck.names(pending_.size()), pending_.size());
    for (std::size_t i = 0; i < arrived; ++i) {
      for (const NameChange& one : pending_[i]) put(one.folder->durable_names, one);
    }
    write_out(*root_, luck, target);
  }

 private:
  static NodePtr read(const fs::path& path) {
    auto node = std::make_shared<Node>();
    node->folder = fs::is_directory(path);
    if (node->folder) {
      for (const auto& entry : fs::directory_iterator(path))
        node->names[entry.path().filename()] = read(entry.path());
      node->durable_names = node->names;
    } else {
      std::ifstream file(path, std::ios::binary);
      node->data.assign(std::istreambuf_iterator<char>(file), {});
      node->durable = node->data;
    }
    return node;
  }

  NodePtr find(const fs::path& path) const {
    NodePtr node = root_;
    for (const fs::path& part : path) {
      if (part.empty()) continue;
      const auto found = node->names.find(part);
      if (found == node->names.end())
        throw std::runtime_error("the record speaks of " + path.string() + ", which is not there");
      node = found->second;
    }
    return node;
  }

  NameChange at(const fs::path& path, NodePtr to) const {
    return {find(path.parent_path()).get(), path.filename(), std::move(to)};
  }

  static void put(Names& names, const NameChange& one) {
    if (one.to) {
      names[one.name] = one.to;
    } else {
      names.erase(one.name);
    }
  }

  void change(NameChanges changes) {
    for (const NameChange& one : changes) put(one.folder->names, one);
    pending_.push_back(std::move(changes));
  }

  // A folder's fsync makes its names durable, a file's its bytes and length; neither does the
  // other.
  void sync(const NodePtr& node) {
    if (!node->folder) {
      node->durable = node->data;
      node->unsynced.clear();
      return;
    }
    std::erase_if(pending_, [&](const NameChanges& changes) {
      const bool touches = std::any_of(changes.begin(), changes.end(), [&](const NameChange& one) {
        return one.folder == node.get();
      });
      for (const NameChange& one : changes) {
        if (touches) put(one.folder->durable_names, one);
      }
      return touches;
    });
  }

  // Applies a write block by block, as far as each arrives.
  template <class Arrives>
  static void write(const FileOperation& operation, std::string& data, Arrives arrives) {
    if (operation.kind == Kind::kResize) {
      if (operation.offset > data.size() || operation.bytes.empty()) data.resize(operation.offset);
      return;
    }
    const std::uint64_t end = operation.offset + operation.bytes.size();
    if (data.size() < end) data.resize(end);
    for (std::uint64_t begin = operation.offset; begin < end;) {
      const std::uint64_t stop = std::min(end, (begin / kBlock + 1) * kBlock);
      if (arrives())
        data.replace(begin, stop - begin, operation.bytes, begin - operation.offset, stop - begin);
      begin = stop;
    }
  }

  static void write_out(const Node& node, const Luck& luck, const fs::path& target) {
    if (node.folder) {
      fs::create_directories(target);
      for (const auto& [name, child] : node.durable_names) write_out(*child, luck, target / name);
      return;
    }
    std::string data = node.durable;
    for (const FileOperation* operation : node.unsynced) write(*operation, data, luck.data);
    std::ofstream(target, std::ios::binary)
        .write(data.data(), static_cast<std::streamsize>(data.size()));
  }

  NodePtr root_;
  std::vector<NameChanges> pending_;
};

}  // namespace

std::vector<FileOperation> record(const fs::path& folder, const std::function<void()>& action) {
  Recorder recorder;
  recorder.root = fs::absolute(folder).lexically_normal().string();
  active = &recorder;
  try {
    action();
  } catch (...) {
    active = nullptr;
    throw;
  }
  active = nullptr;
  return std::move(recorder.operations);
}

void after_power_cut(const std::vector<FileOperation>& operations, std::size_t count,
                     const Luck& luck, const fs::path& before, const fs::path& target) {
  Disk disk(before);
  for (std::size_t i = 0; i < count; ++i) disk.apply(operations[i]);
  disk.build(luck, target);
}

}  // namespace trireme::testing
