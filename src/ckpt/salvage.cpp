// What is still right in a damaged checkpoint, as a new checkpoint.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/tools.hpp"

#include "ckpt/chunks.hpp"
#include "ckpt/copies.hpp"
#include "ckpt/format.hpp"
#include "ckpt/scratch.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

namespace trireme::ckpt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A checkpoint and copies of the same save, of which at least one opens.
class Sources {
 public:
  Sources(const fs::path& source, const std::vector<fs::path>& places) {
    open(source);
    for (const fs::path& copy : copies_of(source, places)) open(copy);
    if (!readers_.empty()) return;
    Error none(ErrorKind::kCorrupt,
               fmt::format("nothing of {} can be told from damage: {}", source.string(), problem_),
               "name a folder with another copy of the same save by --copy");
    throw none;
  }

  const Reader& first() const { return readers_.front(); }

  // Fills `to` from the first copy that has these elements right. Returns its number, or nothing
  // and the first's damage.
  std::optional<std::size_t> read(const Extent& extent, Damage& damage) const {
    for (std::size_t i = 0; i < readers_.size(); ++i) {
      try {
        readers_[i].read({&extent, 1});
        return i;
      } catch (const Error& error) {
        if (error.kind != ErrorKind::kCorrupt && error.kind != ErrorKind::kIo) throw;
        if (i == 0) damage.what = error.message;
      }
    }
    return std::nullopt;
  }

  std::map<std::string, std::string> texts() const {
    std::map<std::string, std::string> all;
    for (const Reader& reader : readers_) all.insert(reader.extra().begin(), reader.extra().end());
    return all;
  }

 private:
  void open(const fs::path& path) {
    try {
      readers_.emplace_back(path, [](const Damage&) {});
    } catch (const Error& error) {
      if (error.kind != ErrorKind::kCorrupt && error.kind != ErrorKind::kIo) throw;
      if (problem_.empty()) problem_ = error.message;
    }
  }

  std::vector<Reader> readers_;
  std::string problem_;
};

// The tensors that could be read whole, on their way through a scratch file.
class Rescue {
 public:
  Rescue(const Sources& sources, const fs::path& folder) : sources_(sources), scratch_(folder) {}

  void take(const Progress& progress, Salvaged& result) {
    const auto& tensors = sources_.first().tensors();
    for (const TensorSpec& spec : tensors) all_ += *bytes_of(spec.dtype, spec.shape);
    for (std::size_t i = 0; i < tensors.size(); ++i) take_tensor(i, progress, result);
  }

  // Returns what was taken; the memory is the scratch file's.
  Snapshot snapshot() {
    Snapshot result;
    const std::byte* memory = scratch_.map();
    for (const auto& [tensor, offset] : places_) {
      const TensorSpec& spec = sources_.first().tensors()[tensor];
      const std::byte* data = memory == nullptr ? nullptr : memory + offset;
      result.extents.push_back({result.tensors.size(), 0, elements_of(spec), data});
      result.tensors.push_back(spec);
    }
    return result;
  }

 private:
  void take_tensor(std::size_t tensor, const Progress& progress, Salvaged& result) {
    const TensorSpec& spec = sources_.first().tensors()[tensor];
    const std::uint64_t size = element_bytes(spec.dtype);
    const std::uint64_t bytes = *bytes_of(spec.dtype, spec.shape);
    const std::uint64_t start = scratch_.size();
    bool mended = false;
    for (std::uint64_t at = 0; at < bytes; at += kCrcBlock) {
      buffer_.resize(std::min(kCrcBlock, bytes - at));
      const Extent extent{tensor, static_cast<std::int64_t>(at / size),
                          static_cast<std::int64_t>(buffer_.size() / size), buffer_.data()};
      Damage damage{
          sources_.first().path().string(), spec.path, at / kCrcBlock, 0, buffer_.size(), ""};
      const auto from = sources_.read(extent, damage);
      tell(progress, buffer_.size());
      if (!from) {
        result.lost.push_back(std::move(damage));
        scratch_.cut(start);
        tell(progress, bytes - at - buffer_.size());
        return;
      }
      mended = mended || *from > 0;
      scratch_.append(buffer_);
    }
    places_.emplace_back(tensor, start);
    result.kept.push_back(spec.path);
    if (mended) result.mended.push_back(spec.path);
  }

  void tell(const Progress& progress, std::uint64_t bytes) {
    done_ += bytes;
    if (progress)
      progress(Bytes(static_cast<std::int64_t>(done_)), Bytes(static_cast<std::int64_t>(all_)));
  }

  const Sources& sources_;
  Scratch scratch_;
  std::vector<std::byte> buffer_;
  std::vector<std::pair<std::size_t, std::uint64_t>> places_;
  std::uint64_t done_ = 0;
  std::uint64_t all_ = 0;
};

}  // namespace

Salvaged salvage(comm::Communicator& comm, const fs::path& source,
                 const std::vector<fs::path>& copies, const fs::path& to,
                 const Progress& progress) {
  if (comm.size() != 1) {
    throw Error(ErrorKind::kConfig, "a checkpoint is salvaged by one process",
                "start it without mpirun");
  }
  const Sources sources(source, copies);
  const auto [folder, step] = target_of(to, sources.first().step());
  Salvaged result;
  if (fs::exists(folder / step_folder(step))) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{} exists already", (folder / step_folder(step)).string()),
                "name another folder with --to: what is salvaged replaces nothing");
  }
  std::error_code error;
  fs::create_directories(folder, error);
  Rescue rescue(sources, folder);
  rescue.take(progress, result);
  Snapshot snapshot = rescue.snapshot();
  snapshot.extra = sources.texts();
  for (const std::string& name : sources.first().text_names()) {
    if (snapshot.extra.contains(name)) {
      result.kept.push_back("extra/" + name);
    } else {
      result.lost.push_back({sources.first().path().string(), "extra/" + name, 0, 0, 0,
                             fmt::format("the text {} lies in a damaged block", name)});
    }
  }
  if (result.kept.empty())
    throw Error(ErrorKind::kCorrupt, fmt::format("nothing in {} is right", source.string()),
                "use an earlier checkpoint");
  result.checkpoint = save(comm, snapshot, {folder, step, 0});
  return result;
}

std::string to_text(const Salvaged& s, bool json) {
  if (json) {
    Json lost = Json::array();
    for (const Damage& damage : s.lost) lost.push_back(Json::parse(json_of(damage)));
    return Json{{"checkpoint", s.checkpoint.string()},
                {"complete", s.lost.empty()},
                {"kept", s.kept},
                {"mended", s.mended},
                {"lost", lost}}
        .dump(2, ' ', false, Json::error_handler_t::replace);
  }
  std::string text =
      fmt::format("{}: {} kept, {} of them mended from a copy, {} lost", s.checkpoint.string(),
                  s.kept.size(), s.mended.size(), s.lost.size());
  for (const std::string& name : s.mended) text += fmt::format("\n  mended: {}", name);
  for (const Damage& damage : s.lost)
    text += fmt::format("\n  lost: {} ({})", damage.dataset, damage.what);
  return text;
}

}  // namespace trireme::ckpt
