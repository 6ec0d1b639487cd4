#include "trireme/train/checkpointing.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace trireme::train {

namespace {

// The datasets of a parameter: its master weights and one a moment.
constexpr std::array<const char*, 3> kFolders{"/model/", "/optimizer/exp_avg/",
                                              "/optimizer/exp_avg_sq/"};

std::array<void*, 3> pointers(const parallel::StatePiece& piece) {
  return {piece.master, piece.moments[0], piece.moments[1]};
}

[[noreturn]] void throw_other_model(const ckpt::Reader& reader, const std::string& what) {
  throw Error(
      ErrorKind::kConfig,
      fmt::format("{} is a checkpoint of another model: {}", reader.path().string(), what),
      "use the model settings that are stored with it (trireme ckpt inspect), or another run.name");
}

// Returns the index of each dataset in the file, by folder and parameter.
std::array<std::vector<std::size_t>, 3> locate(parallel::Engine& engine,
                                               const ckpt::Reader& reader) {
  std::array<std::vector<std::size_t>, 3> where;
  std::size_t in_model = 0;
  for (const ckpt::TensorSpec& spec : reader.tensors())
    in_model += spec.path.starts_with(kFolders[0]) ? 1U : 0U;
  const auto parameters = engine.parameters();
  for (std::size_t folder = 0; folder < kFolders.size(); ++folder) {
    for (const parallel::Slot* slot : parameters) {
      const auto found = reader.find(kFolders[folder] + slot->name);
      if (!found)
        throw_other_model(reader, fmt::format("it has no {}{}", kFolders[folder], slot->name));
      const auto& stored = reader.tensors()[*found].shape;
      if (stored != slot->shape) {
        throw_other_model(reader,
                          fmt::format("{} is [{}] there and [{}] here", slot->name,
                                      fmt::join(stored, ", "), fmt::join(slot->shape, ", ")));
      }
      where[folder].push_back(*found);
    }
  }
  if (in_model != parameters.size()) {
    throw_other_model(reader, fmt::format("it has {} parameters, this model has {}", in_model,
                                          parameters.size()));
  }
  return where;
}

}  // namespace

ckpt::Snapshot snapshot(parallel::Engine& engine, const TrainingState& state,
                        const std::string& config_yaml) {
  ckpt::Snapshot result;
  const auto parameters = engine.parameters();
  for (const char* folder : kFolders) {
    for (const parallel::Slot* slot : parameters) {
      result.tensors.push_back({folder + slot->name, ckpt::DType::kFloat32, slot->shape});
    }
  }
  for (const parallel::StatePiece& piece : engine.state(/*owned=*/true)) {
    const auto data = pointers(piece);
    for (std::size_t folder = 0; folder < kFolders.size(); ++folder) {
      result.extents.push_back(
          {folder * parameters.size() + piece.parameter, piece.begin, piece.count, data[folder]});
    }
  }
  result.extra = {{"training", to_json(state)}, {"config", config_yaml}};
  return result;
}

TrainingState restore(parallel::Engine& engine, const ckpt::Reader& reader) {
  const auto where = locate(engine, reader);
  const auto training = reader.extra().find("training");
  if (training == reader.extra().end()) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{} has no extra/training", reader.path().string()));
  }
  std::vector<ckpt::Extent> extents;
  for (const parallel::StatePiece& piece : engine.state(/*owned=*/false)) {
    const auto data = pointers(piece);
    for (std::size_t folder = 0; folder < kFolders.size(); ++folder) {
      extents.push_back({where[folder][piece.parameter], piece.begin, piece.count, data[folder]});
    }
  }
  reader.read(extents);
  return training_state_from_json(training->second);
}

}  // namespace trireme::train
