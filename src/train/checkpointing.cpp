#include "trireme/train/checkpointing.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme::train {

namespace {

// Where a model's tensors are.
struct Folders {
  std::string model;
  std::string optimizer;

  explicit Folders(int place)
      : model(place == 0 ? "/model/" : fmt::format("/model_{}/", place)),
        optimizer(place == 0 ? "/optimizer/" : fmt::format("/optimizer_{}/", place)) {}

  std::string in_optimizer(const std::string& slot, const std::string& parameter) const {
    return fmt::format("{}{}/{}", optimizer, slot, parameter);
  }
  bool is_model(const std::string& path) const { return path.starts_with(model); }
  bool is_optimizer(const std::string& path) const { return path.starts_with(optimizer); }
};

// Every tensor that a checkpoint of this run has, and this rank's parts of them: all that it holds,
// or only what it owns, so that all ranks' parts tile each tensor once.
struct Content {
  // One array of a piece of the engine's state, or values of the optimizer's own (no piece).
  struct Part {
    std::size_t tensor;  // index into tensors
    std::int64_t begin;
    std::int64_t count;
    void* data;  // null: the engine has it on disk
    parallel::StatePiece piece = {};
    int array = 0;
  };
  std::vector<ckpt::TensorSpec> tensors;
  std::vector<Part> parts;
};

Content content_of(const Stored& stored, bool owned) {
  Content content;
  parallel::Engine& engine = stored.engine;
  const Folders folders(stored.place);
  const auto parameters = engine.parameters();
  const std::vector<std::string> moments =
      stored.optimizer == nullptr ? std::vector<std::string>{} : stored.optimizer->moment_names();
  const ckpt::DType moment_type =
      engine.moments() == at::kBFloat16 ? ckpt::DType::kBFloat16 : ckpt::DType::kFloat32;
  for (const parallel::Slot* slot : parameters) {
    content.tensors.push_back({folders.model + slot->name, ckpt::DType::kFloat32, slot->shape});
  }
  std::vector<std::vector<std::size_t>> tensor_of(moments.size());  // by moment and parameter
  for (std::size_t m = 0; m < moments.size(); ++m) {
    for (const parallel::Slot* slot : parameters) {
      tensor_of[m].push_back(content.tensors.size());
      if (!slot->trains) continue;
      content.tensors.push_back(
          {folders.in_optimizer(moments[m], slot->name), moment_type, slot->shape});
    }
  }
  for (const parallel::StatePiece& piece : engine.state(owned)) {
    const auto add = [&](std::size_t tensor, void* data, int array) {
      content.parts.push_back({tensor, piece.begin, piece.count, data, piece, array});
    };
    add(piece.parameter, piece.master, 0);
    if (!parameters[piece.parameter]->trains) continue;
    for (std::size_t m = 0; m < moments.size(); ++m)
      add(tensor_of[m][piece.parameter], piece.moments[m], static_cast<int>(m) + 1);
  }
  if (stored.optimizer == nullptr) return content;
  // The same on every rank: one writes it, all read it.
  for (const optim::ExtraTensor& extra : stored.optimizer->extra_state()) {
    const std::string& parameter = parameters[extra.parameter]->name;
    if (!owned || extra.owned) {
      content.parts.push_back(
          {content.tensors.size(), 0, std::ssize(extra.values), extra.values.data()});
    }
    content.tensors.push_back(
        {folders.in_optimizer(extra.slot, parameter), ckpt::DType::kFloat32, extra.shape});
  }
  return content;
}

[[noreturn]] void throw_other_model(const ckpt::Reader& reader, const std::string& what) {
  throw Error(
      ErrorKind::kConfig,
      fmt::format("{} is a checkpoint of another model: {}", reader.path().string(), what),
      "use the model settings that are stored with it (trireme ckpt inspect), or another run.name");
}

[[noreturn]] void throw_other_optimizer(const ckpt::Reader& reader, const std::string& what) {
  throw Error(
      ErrorKind::kConfig,
      fmt::format("{} is a checkpoint of another optimizer: {}", reader.path().string(), what),
      "use the optimizer and precision settings that are stored with it (trireme ckpt "
      "inspect), or another run.name");
}

// Model tensors stand first in a Content.
void keep_weights_alone(Content& content, const Folders& folders) {
  std::erase_if(content.tensors, [&](const auto& spec) { return !folders.is_model(spec.path); });
  const std::size_t kept = content.tensors.size();
  std::erase_if(content.parts, [kept](const auto& part) { return part.tensor >= kept; });
}

// Returns where a tensor is in the file; throws for one that is absent or another.
std::size_t locate(const ckpt::TensorSpec& wanted, const Folders& folders,
                   const ckpt::Reader& reader) {
  const auto refuse = folders.is_model(wanted.path) ? throw_other_model : throw_other_optimizer;
  const auto found = reader.find(wanted.path);
  if (!found) refuse(reader, fmt::format("it has no {}", wanted.path));
  const ckpt::TensorSpec& stored = reader.tensors()[*found];
  if (stored.shape != wanted.shape) {
    refuse(reader, fmt::format("{} is [{}] there and [{}] here", wanted.path,
                               fmt::join(stored.shape, ", "), fmt::join(wanted.shape, ", ")));
  }
  if (stored.dtype != wanted.dtype) {
    refuse(reader, fmt::format("{} is kept in another type there", wanted.path));
  }
  return *found;
}

// What the file has beside what this run has.
void refuse_more(const Content& content, const Folders& folders, const ckpt::Reader& reader) {
  using Specs = std::vector<ckpt::TensorSpec>;
  const auto is_model = [&](const std::string& path) { return folders.is_model(path); };
  const auto is_optimizer = [&](const std::string& path) { return folders.is_optimizer(path); };
  const auto count = [](const Specs& specs, const auto& is) {
    return std::ranges::count_if(specs, is, &ckpt::TensorSpec::path);
  };
  const auto in_model = count(reader.tensors(), is_model);
  const auto here = count(content.tensors, is_model);
  if (in_model != here) {
    throw_other_model(reader,
                      fmt::format("it has {} parameters, this model has {}", in_model, here));
  }
  if (count(reader.tensors(), is_optimizer) <= count(content.tensors, is_optimizer)) return;
  for (const ckpt::TensorSpec& stored : reader.tensors()) {
    if (!is_optimizer(stored.path)) continue;
    const auto same = std::ranges::find(content.tensors, stored.path, &ckpt::TensorSpec::path);
    if (same == content.tensors.end()) {
      throw_other_optimizer(reader, fmt::format("this one has no {}", stored.path));
    }
  }
}

std::int64_t elements_of(const Content& content) {
  std::int64_t sum = 0;
  for (const Content::Part& part : content.parts) sum += part.count;
  return sum;
}

std::uint64_t element_size(const ckpt::TensorSpec& spec) {
  return spec.dtype == ckpt::DType::kBFloat16 ? 2 : 4;
}

ckpt::ConstExtent for_saving(parallel::Engine& engine, const Content& content,
                             const Content::Part& part) {
  ckpt::ConstExtent extent{part.tensor, part.begin, part.count, part.data};
  if (part.data != nullptr || part.count == 0) return extent;
  const std::uint64_t size = element_size(content.tensors[part.tensor]);
  extent.move = [&engine, size, piece = part.piece, array = part.array](
                    std::uint64_t offset, std::span<std::byte> bytes) {
    engine.read_state(piece, array, static_cast<std::int64_t>(offset / size), bytes);
  };
  return extent;
}

ckpt::Extent for_loading(parallel::Engine& engine, const Content& content,
                         const Content::Part& part, std::size_t tensor) {
  ckpt::Extent extent{tensor, part.begin, part.count, part.data};
  if (part.data != nullptr || part.count == 0) return extent;
  const std::uint64_t size = element_size(content.tensors[part.tensor]);
  extent.move = [&engine, size, piece = part.piece, array = part.array](
                    std::uint64_t offset, std::span<const std::byte> bytes) {
    engine.write_state(piece, array, static_cast<std::int64_t>(offset / size), bytes);
  };
  return extent;
}

}  // namespace

namespace {

void add_to(ckpt::Snapshot& result, const Stored& stored) {
  const Content content = content_of(stored, /*owned=*/true);
  const std::size_t before = result.tensors.size();
  result.tensors.insert(result.tensors.end(), content.tensors.begin(), content.tensors.end());
  for (const Content::Part& part : content.parts) {
    result.extents.push_back(for_saving(stored.engine, content, part));
    result.extents.back().tensor += before;
  }
}

// `weights_alone`: the optimizer starts afresh.
void restore_one(const Stored& stored, bool weights_alone, const ckpt::Reader& reader) {
  Content content = content_of(stored, /*owned=*/false);
  const Folders folders(stored.place);
  // What several ranks hold, several ranks of a node may read.
  const bool alone = elements_of(content) == elements_of(content_of(stored, /*owned=*/true));
  if (weights_alone) keep_weights_alone(content, folders);
  std::vector<std::size_t> where;
  for (const ckpt::TensorSpec& wanted : content.tensors)
    where.push_back(locate(wanted, folders, reader));
  refuse_more(content, folders, reader);
  std::vector<ckpt::Extent> extents;
  for (const Content::Part& part : content.parts)
    extents.push_back(for_loading(stored.engine, content, part, where[part.tensor]));
  reader.read(extents, alone ? ckpt::PageCache::kPast : ckpt::PageCache::kThrough);
}

}  // namespace

ckpt::Snapshot snapshot(parallel::Engine& engine, optim::Optimizer& optimizer,
                        const TrainingState& state, const std::string& config_yaml) {
  ckpt::Snapshot result = snapshot({{engine, &optimizer}});
  result.extra = {{"training", to_json(state)}, {"config", config_yaml}};
  return result;
}

ckpt::Snapshot snapshot(const std::vector<Stored>& models) {
  ckpt::Snapshot result;
  for (const Stored& stored : models) add_to(result, stored);
  return result;
}

std::optional<TrainingState> restore(parallel::Engine& engine, optim::Optimizer& optimizer,
                                     const ckpt::Reader& reader) {
  const auto training = reader.extra().find("training");
  const bool has_training = training != reader.extra().end();
  const auto is_optimizer = [](const std::string& path) { return Folders(0).is_optimizer(path); };
  const bool has_optimizer =
      std::ranges::any_of(reader.tensors(), is_optimizer, &ckpt::TensorSpec::path);
  if (!has_training && has_optimizer) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{} has no extra/training", reader.path().string()));
  }
  restore_one({engine, &optimizer}, /*weights_alone=*/!has_training, reader);
  if (!has_training) return std::nullopt;
  return training_state_from_json(training->second);
}

void restore(const std::vector<Stored>& models, const ckpt::Reader& reader) {
  const Folders next(static_cast<int>(models.size()));
  const auto is_next = [&](const std::string& path) { return next.is_model(path); };
  if (std::ranges::any_of(reader.tensors(), is_next, &ckpt::TensorSpec::path)) {
    throw_other_model(reader, fmt::format("it has more than {} models", models.size()));
  }
  for (const Stored& stored : models) restore_one(stored, /*weights_alone=*/false, reader);
}

}  // namespace trireme::train
