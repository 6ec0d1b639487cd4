// Which checkpoints there are, and the newest that every rank can load.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"

#include "ckpt/folder.hpp"
#include "ckpt/format.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;

// Root's view of the folder counts: on a shared file system others may see it later.
std::vector<Step> agreed_steps(comm::Communicator& comm, const fs::path& folder) {
  comm::ByteVector message;
  comm.agree("checkpoint list", [&] {
    if (!comm.is_root()) return;
    recover(folder);
    std::vector<std::int64_t> steps;
    for (const fs::path& path : list(folder))
      steps.push_back(step_of(path.filename().string())->value);
    const auto bytes = std::as_bytes(std::span(steps));
    message.assign(bytes.begin(), bytes.end());
  });
  message = comm.broadcast(std::move(message), "checkpoint list");
  std::vector<Step> steps(message.size() / sizeof(std::int64_t));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::memcpy(&steps[i].value, message.data() + i * sizeof(std::int64_t), sizeof(std::int64_t));
  }
  return steps;
}

// An unreadable sector is damage too; anything else (another model, a lost rank) would be no better
// one checkpoint back.
bool is_damage(const Error& error) {
  return error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kIo;
}

}  // namespace

std::vector<fs::path> list(const fs::path& folder) {
  std::vector<std::pair<Step, fs::path>> found;
  std::error_code error;
  if (!fs::exists(folder, error)) return {};
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    std::error_code ignored;
    if (step && it->is_directory(ignored)) found.emplace_back(*step, it->path());
  }
  if (error)
    throw Error(ErrorKind::kIo,
                fmt::format("cannot list {}: {}", folder.string(), error.message()));
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

std::optional<Step> load_newest(comm::Communicator& comm, const fs::path& folder,
                                const std::function<void(const Reader&)>& load,
                                const std::function<void(const std::string&)>& warn) {
  const std::vector<Step> steps = agreed_steps(comm, folder);
  std::string last;
  for (const Step step : steps) {
    const fs::path path = folder / step_folder(step);
    try {
      comm.agree("checkpoint load", [&] { load(Reader(path)); });
      return step;
    } catch (const Error& error) {
      // All ranks hold the same error here, so all of them go on or none.
      if (!is_damage(error)) throw;
      const std::string who = error.rank < 0 ? "every rank" : fmt::format("rank {}", error.rank);
      last = fmt::format("checkpoint {} is not usable (found by {}): {}", path.string(), who,
                         error.message);
      if (comm.is_root()) warn(last);
    }
  }
  if (steps.empty()) return std::nullopt;
  Error none(ErrorKind::kCorrupt,
             fmt::format("none of the {} checkpoints in {} is usable; {}", steps.size(),
                         folder.string(), last),
             "move the folder aside to start anew, or copy a good checkpoint into it");
  none.everywhere = true;
  throw none;
}

}  // namespace trireme::ckpt
