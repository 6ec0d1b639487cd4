// What a checkpoint of a user's loop holds beside tensors, and a model's weights in one place.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/safetensors.hpp"
#include "trireme/ckpt/tools.hpp"
#include "trireme/train/checkpointing.hpp"

#include "accelerator_core.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>

namespace trireme {

namespace train {

namespace {

using nlohmann::json;

constexpr int kVersion = 1;

// Counts the ticks of a scheduler of torch, which has no way to say or set them.
struct Ticks : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&Ticks::step_count_);
  }
};

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string unhex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
  throw Error(ErrorKind::kConfig, message, hint);
}

// As many as there are here; they are told apart by their order.
void require_count(const json& stored, std::size_t here, const char* what) {
  if (stored.size() == here) return;
  refuse(
      fmt::format("the checkpoint has {} {}, this program prepared {}", stored.size(), what, here),
      "prepare the same things in the same order before load_state()");
}

}  // namespace

std::string AcceleratorCore::state() const {
  json all{{"accelerator", kVersion},
           {"steps", completed_steps},
           {"skipped", skipped_steps},
           {"saves", saves + 1},
           {"micro_step", micro_step % options.gradient_accumulation_steps},
           {"seed", options.seed},
           {"loss_scaler", scaler.state()}};
  all["optimizers"] = json::array();
  for (const OptimizerState& optimizer : optimizers) {
    json rates = json::array();
    if (optimizer.torch != nullptr) {
      for (const auto& group : optimizer.torch->param_groups())
        rates.push_back(group.options().get_lr());
    }
    all["optimizers"].push_back({{"updates", optimizer.updates},
                                 {"skips_in_a_row", optimizer.skips_in_a_row},
                                 {"rates", rates}});
  }
  all["schedulers"] = json::array();
  for (const SchedulerState& scheduler : schedulers) {
    json one{{"ticks", scheduler.ticks}};
    if (scheduler.torch != nullptr) one["torch"] = Ticks::of(*scheduler.torch);
    if (scheduler.metric) one["metric"] = scheduler.metric->state();
    all["schedulers"].push_back(one);
  }
  all["loaders"] = json::array();
  for (const auto& loader : loaders)
    all["loaders"].push_back({{"epoch", loader->epoch()}, {"samples", loader->position()}});
  all["objects"] = json::object();
  for (const auto& [name, object] : objects) all["objects"][name] = hex(object.state_dict());
  return all.dump();
}

void AcceleratorCore::restore_state(const std::string& text) {
  const json all = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || all.value("accelerator", 0) != kVersion) {
    refuse("this is no checkpoint of an Accelerator's loop",
           "trireme train continues those of trireme train; weights alone: ckpt export");
  }
  require_count(all["optimizers"], optimizers.size(), "optimizers");
  require_count(all["schedulers"], schedulers.size(), "schedules");
  require_count(all["loaders"], loaders.size(), "loaders");
  for (const auto& [name, object] : objects) {
    if (!all["objects"].contains(name))
      refuse(fmt::format("the checkpoint has no object '{}'", name), "register it under its name");
  }
  if (all["objects"].size() != objects.size()) {
    refuse(fmt::format("the checkpoint has {} registered objects, this program has {}",
                       all["objects"].size(), objects.size()),
           "register the same objects before load_state()");
  }
  completed_steps = all["steps"];
  skipped_steps = all["skipped"];
  saves = all["saves"];
  micro_step = all["micro_step"];
  options.seed = all["seed"];
  scaler.restore(all["loss_scaler"]);
  for (std::size_t o = 0; o < optimizers.size(); ++o) {
    const json& from = all["optimizers"][o];
    OptimizerState& optimizer = optimizers[o];
    optimizer.updates = from["updates"];
    optimizer.skips_in_a_row = from["skips_in_a_row"];
    if (optimizer.torch == nullptr) continue;
    auto& groups = optimizer.torch->param_groups();
    require_count(from["rates"], groups.size(), "groups of an optimizer");
    for (std::size_t g = 0; g < groups.size(); ++g) groups[g].options().set_lr(from["rates"][g]);
  }
  for (std::size_t s = 0; s < schedulers.size(); ++s) {
    const json& from = all["schedulers"][s];
    SchedulerState& scheduler = schedulers[s];
    scheduler.ticks = from["ticks"];
    if (scheduler.torch != nullptr) Ticks::of(*scheduler.torch) = from.value("torch", 0U);
    if (scheduler.metric) scheduler.metric->restore(from.value("metric", ""));
    scheduler.apply();
  }
  for (std::size_t l = 0; l < loaders.size(); ++l)
    loaders[l]->seek_position(all["loaders"][l]["epoch"], all["loaders"][l]["samples"]);
  for (const auto& [name, object] : objects)
    object.load_state_dict(unhex(all["objects"][name].get<std::string>()));
}

namespace {

// @collective. Gives rank 0 each parameter of a model whole, one after the other; others get an
// undefined tensor.
void for_each_whole(comm::Communicator& world, parallel::Engine& engine,
                    const std::function<void(const parallel::Slot&, const at::Tensor&)>& visit) {
  const auto parameters = engine.parameters();
  const std::vector<parallel::StatePiece> pieces = engine.state(/*owned=*/true);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    std::vector<comm::Message> out;
    for (const parallel::StatePiece& piece : pieces) {
      if (piece.parameter != p || piece.count == 0) continue;
      std::vector<float> values(static_cast<std::size_t>(piece.count));
      engine.read_state(piece, 0, 0, std::as_writable_bytes(std::span(values)));
      comm::Message& message = out.emplace_back(comm::Message{Rank(0), {}});
      pack(piece.begin, message.bytes);
      pack(values, message.bytes);
    }
    const auto received = world.exchange(std::move(out), "gather a parameter");
    at::Tensor whole;
    if (world.is_root()) whole = at::empty(parameters[p]->shape, at::kFloat);
    for (const comm::Message& message : received) {
      std::span<const std::byte> from = message.bytes;
      std::int64_t begin = 0;
      std::vector<float> values;
      unpack(begin, from);
      unpack(values, from);
      std::ranges::copy(values, whole.mutable_data_ptr<float>() + begin);
    }
    visit(*parameters[p], whole);
  }
}

ckpt::safetensors::Type type_of(at::ScalarType type) {
  using ckpt::safetensors::Type;
  switch (type) {
    case at::kFloat:
      return Type::kF32;
    case at::kDouble:
      return Type::kF64;
    case at::kHalf:
      return Type::kF16;
    case at::kBFloat16:
      return Type::kBF16;
    case at::kLong:
      return Type::kI64;
    case at::kInt:
      return Type::kI32;
    case at::kBool:
      return Type::kBool;
    case at::kByte:
      return Type::kU8;
    default:
      refuse(fmt::format("a buffer of type {} cannot be saved", toString(type)), "");
  }
}

// Files that hold a model's tensors, in order.
struct WeightFile {
  std::filesystem::path path;
  std::vector<ckpt::safetensors::Entry> entries;
  std::int64_t bytes = 0;
};

std::vector<WeightFile> cut(const std::vector<ckpt::safetensors::Entry>& entries,
                            const std::filesystem::path& folder, Bytes most) {
  std::vector<WeightFile> files(1);
  for (const auto& entry : entries) {
    auto bytes = static_cast<std::int64_t>(ckpt::safetensors::element_bytes(entry.type));
    for (const std::int64_t size : entry.shape) bytes *= size;
    if (!files.back().entries.empty() && files.back().bytes + bytes > most.value)
      files.emplace_back();
    files.back().entries.push_back(entry);
    files.back().bytes += bytes;
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    files[f].path = folder / (files.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                              f + 1, files.size()));
  }
  return files;
}

void write_index(const std::vector<WeightFile>& files, const std::filesystem::path& folder) {
  const auto path = folder / "model.safetensors.index.json";
  std::int64_t total = 0;
  json map = json::object();
  for (const WeightFile& file : files) {
    total += file.bytes;
    for (const auto& entry : file.entries) map[entry.name] = file.path.filename().string();
  }
  std::ofstream out(path);
  out << json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) << "\n";
  if (!out.flush()) throw_errno("write", path.string());
}

// What an earlier model left there would be taken for a part of this one.
void remove_others(const std::vector<WeightFile>& files, const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = std::ranges::any_of(
        files, [&](const WeightFile& file) { return file.path.filename() == name; });
    const bool index = name == "model.safetensors.index.json" && files.size() > 1;
    if (!ours && !index && name.starts_with("model") &&
        (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")))
      std::filesystem::remove(entry.path());
  }
}

}  // namespace

}  // namespace train

using train::ModelState;

namespace {

std::vector<train::Stored> stored_models(train::AcceleratorCore& core) {
  std::vector<train::Stored> all;
  for (ModelState& model : core.models) {
    if (!model.engine) core.build(model);
    all.push_back({*model.engine, model.optimizer ? &*model.optimizer : nullptr,
                   static_cast<int>(model.place)});
  }
  return all;
}

std::filesystem::path checkpoints_of(const AcceleratorOptions& options,
                                     const std::filesystem::path& path) {
  if (!path.empty()) return path;
  if (options.project.automatic_checkpoint_naming)
    return options.project.project_dir / "checkpoints";
  throw Error(ErrorKind::kConfig, "no path for the state",
              "give one, or set project.automatic_checkpoint_naming and project.project_dir");
}

}  // namespace

std::filesystem::path Accelerator::save_state(const std::filesystem::path& path) {
  const auto folder = checkpoints_of(core_->options, path);
  for (const auto& hook : core_->save_hooks) hook(folder);
  for (ModelState& model : core_->models) {
    if (!model.begun || model.turns == 0) continue;
    throw Error(ErrorKind::kConfig, "save_state() while gradients are accumulated",
                "save after optimizer.step(): gradients are not part of a checkpoint");
  }
  ckpt::Snapshot snapshot = train::snapshot(stored_models(*core_));
  snapshot.extra["training"] = core_->state();
  const int keep = path.empty() ? core_->options.project.total_limit : 1;
  const ckpt::SaveResult saved =
      core_->saver.save(core_->world(), snapshot, {folder, Step(core_->completed_steps), keep});
  ++core_->saves;
  for (const std::string& note : saved.notes) core_->context.log().info(note);
  return saved.path;
}

void Accelerator::load_state(const std::filesystem::path& path) {
  const auto folder = checkpoints_of(core_->options, path);
  for (const auto& hook : core_->load_hooks) hook(folder);
  for (ModelState& model : core_->models) {
    if (model.begun && model.turns > 0) core_->discard(model);
  }
  const auto load = [this](const ckpt::Reader& reader) {
    const auto text = reader.extra().find("training");
    if (text == reader.extra().end()) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("{} holds no state of training", reader.path().string()),
                  "it may hold weights alone");
    }
    train::restore(stored_models(*core_), reader);
    core_->restore_state(text->second);
  };
  stored_models(*core_);  // before one rank may fail alone
  if (std::filesystem::exists(folder / "manifest.json")) {
    core_->world().agree("load a checkpoint", [&] { load(ckpt::Reader(folder)); });
  } else {
    const auto warn = [this](const std::string& text) { core_->context.log().warn(text); };
    if (!ckpt::load_newest(core_->world(), folder, load, warn)) {
      Error error(ErrorKind::kConfig, fmt::format("{} holds no checkpoint", folder.string()),
                  "its folders are named step-NNNNNNNN");
      error.everywhere = true;
      throw error;
    }
  }
  for (ModelState& model : core_->models) model.engine->refresh_work();
}

void Accelerator::register_for_checkpointing(const std::string& name, Checkpointable object) {
  for (const auto& [known, other] : core_->objects) {
    if (known != name) continue;
    throw Error(ErrorKind::kConfig, fmt::format("two objects are registered as '{}'", name),
                "give each its own name");
  }
  core_->objects.emplace_back(name, std::move(object));
}

void Accelerator::register_save_state_pre_hook(StateHook hook) {
  core_->save_hooks.push_back(std::move(hook));
}
void Accelerator::register_load_state_pre_hook(StateHook hook) {
  core_->load_hooks.push_back(std::move(hook));
}

std::map<std::string, at::Tensor> Accelerator::whole_state(ModelState& model) {
  if (!model.engine) core_->build(model);
  std::map<std::string, at::Tensor> state;
  const auto keep = [&](const parallel::Slot& slot, const at::Tensor& whole) {
    if (is_main_process()) state[slot.name] = whole;
  };
  train::for_each_whole(core_->world(), *model.engine, keep);
  if (!is_main_process()) return state;
  for (const auto& item : model.module->named_buffers())
    state[item.key()] = item.value().detach().clone();
  return state;
}

std::vector<std::filesystem::path> Accelerator::save_weights(ModelState& model,
                                                             const std::filesystem::path& folder,
                                                             Bytes max_shard_size) {
  if (!model.engine) core_->build(model);
  namespace st = ckpt::safetensors;
  std::vector<st::Entry> entries;
  for (const parallel::Slot* slot : model.engine->parameters())
    entries.push_back({slot->name, st::Type::kF32, slot->shape});
  const auto buffers = model.module->named_buffers();
  for (const auto& item : buffers) {
    entries.push_back(
        {item.key(), train::type_of(item.value().scalar_type()), item.value().sizes().vec()});
  }
  const auto files = train::cut(entries, folder, max_shard_size);
  std::optional<st::Writer> writer;
  std::size_t file = 0;
  std::size_t entry = 0;
  const auto put = [&](const at::Tensor& tensor) {
    core_->world().agree("write weights", [&] {
      if (!is_main_process()) return;
      if (!writer) {
        std::filesystem::create_directories(folder);
        writer.emplace(files[file].path, files[file].entries,
                       std::map<std::string, std::string>{{"format", "pt"}});
      }
      const at::Tensor dense = tensor.contiguous();
      writer->write({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
      if (++entry < files[file].entries.size()) return;
      writer->finish();
      writer.reset();
      ++file;
      entry = 0;
    });
  };
  train::for_each_whole(core_->world(), *model.engine,
                        [&](const parallel::Slot&, const at::Tensor& whole) { put(whole); });
  for (const auto& item : buffers) put(item.value().detach());
  core_->world().agree("finish weights", [&] {
    if (!is_main_process()) return;
    if (files.size() > 1) train::write_index(files, folder);
    train::remove_others(files, folder);
  });
  std::vector<std::filesystem::path> paths;
  for (const auto& written : files) paths.push_back(written.path);
  return paths;
}

}  // namespace trireme
