// The meaning of foreign files as native settings: one function for each part of the meaning.
#include "trireme/config/adapt.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include "../tree.hpp"
#include "refused.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace trireme::config {

namespace {

std::string shown_value(const Value& value) { return value.text().value_or(value.json()); }

// One file's meaning on its way to settings.
class Mapping {
 public:
  Mapping(const Foreign& foreign, const Loaded& native, std::optional<std::int64_t> world,
          bool grouped_decay, Adapted& out)
      : foreign_(foreign),
        native_(native),
        world_(world),
        grouped_decay_(grouped_decay),
        out_(out) {}

  void run() {
    processes();
    strategy();
    precision();
    batch();
    offload();
    memory();
    clip();
    optimizer();
    length();
    schedule();
    saving();
    extras();
    idle();
  }

 private:
  const Value& part(std::string_view name) const {
    const Value* value = &foreign_.meaning;
    while (!name.empty()) {
      const auto dot = std::min(name.find('.'), name.size());
      value = &value->at(name.substr(0, dot));
      name.remove_prefix(std::min(dot + 1, name.size()));
    }
    return *value;
  }

  bool has(std::string_view name) const { return !part(name).null(); }

  // Of the part itself or of the group that it is in.
  const Origin* origin(std::string_view name) const {
    for (;;) {
      const auto found = foreign_.origins.find(std::string(name));
      if (found != foreign_.origins.end()) return &found->second;
      const auto dot = name.rfind('.');
      if (dot == std::string_view::npos) return nullptr;
      name = name.substr(0, dot);
    }
  }

  bool standard(std::string_view name) const {
    const Origin* const from = origin(name);
    return from == nullptr || from->key.empty();
  }

  std::string source(std::string_view name) const {
    const Origin* const from = origin(name);
    if (from == nullptr) return foreign_.file;
    if (from->key.empty())
      return from->standard == "computed" ? fmt::format("computed from {}", foreign_.file)
                                          : fmt::format("default of {}", from->standard);
    const std::string fill =
        from->filled && !from->filled->empty() ? fmt::format(": auto = {}", *from->filled) : "";
    const std::string file = from->file.empty() ? foreign_.file : from->file;
    return fmt::format("{}:{} ({}{})", file, from->line, from->key, fill);
  }

  // Whether the user set it natively: then it wins, and nothing is missing.
  bool given(std::string_view path) const {
    const auto found = native_.sources.find(std::string(path));
    return found != native_.sources.end() && found->second != "default";
  }

  void set(std::string_view path, const Value& value, std::string_view from) {
    out_.settings.push_back({std::string(path), value.json(), source(from), standard(from)});
  }

  // A value that goes with another one, by rule of the file's program.
  void set_with(std::string_view path, const Value& value, std::string_view from) {
    out_.settings.push_back({std::string(path), value.json(), source(from), true});
  }

  void refuse(std::string_view from, std::string why, std::string instead) {
    const Origin* const place = origin(from);
    ForeignFinding finding;
    finding.file = foreign_.file;
    finding.path = std::string(from);
    if (place != nullptr && !place->key.empty()) {
      finding.file = place->file.empty() ? foreign_.file : place->file;
      finding.path = place->key;
      finding.line = place->line;
    }
    finding.why = std::move(why);
    finding.suggest = std::move(instead);
    out_.findings.push_back(std::move(finding));
  }

  void note(std::string_view from, std::string why) {
    if (standard(from) && !from.starts_with("activation")) return;  // nobody wrote it
    const auto before = out_.findings.size();
    refuse(from, std::move(why), {});
    out_.findings.at(before).severity = Severity::kNotApplicable;
  }

  // Sets a value, unless it is "auto" that nothing fills; then it must be given natively.
  void set_or_need(std::string_view path, std::string_view from) {
    const Value& value = part(from);
    if (value.null()) return;
    if (!value.is("auto")) {
      set(path, value, from);
    } else if (!given(path)) {
      refuse(from, "\"auto\", and nothing fills it",
             fmt::format("a value, or --set {}=..., or --training-arguments FILE", path));
    }
  }

  // --- ranks

  void processes() {
    if (foreign_.kind != ForeignKind::kAccelerate) return;
    out_.num_machines = part("num_machines").integer().value_or(1);
    const bool single = part("strategy").is("none");
    const auto asked = single ? std::optional<std::int64_t>(1) : part("num_processes").integer();
    if (!asked) return;
    out_.num_processes = asked;
    if (!world_ || *world_ == *asked) return;
    refuse(single ? "strategy" : "num_processes",
           fmt::format("{} asked for, but this job has {}", plural(*asked), plural(*world_)),
           single ? fmt::format("distributed_type: MULTI_CPU and num_processes: {}", *world_)
                  : fmt::format("trireme launch --accelerate {} train ..., or num_processes: {}",
                                foreign_.file, *world_));
  }

  static std::string plural(std::int64_t count) {
    return fmt::format("{} process{}", count, count == 1 ? "" : "es");
  }

  // --- parallel

  void strategy() {
    const Value& value = part("strategy");
    if (value.null()) return;
    if (value.is("unsupported")) {
      refuse("strategy", "not in this version, which shards and replicates the model alone",
             "FSDP, DEEPSPEED or MULTI_GPU without it");
      return;
    }
    const std::string name = value.is("none") ? "ddp" : *value.text();
    set("parallel.strategy", name, "strategy");
    out_.settings.back().standard = false;  // distributed_type asks for it
    if (const auto shard = part("mesh.shard").integer(); shard && name == "hsdp")
      set("parallel.shard_size", *shard, "strategy");
    if ((name == "zero3" || name == "hsdp") && has("reshard_after_forward"))
      set_with("parallel.reshard_after_forward", part("reshard_after_forward"), "strategy");
    units();
    if (has("prefetch"))
      note("prefetch.backward",
           "gathers run ahead of need by the order that the first step records");
    if (has("efficient_loading"))
      note("efficient_loading", "no rank ever holds the whole model, whatever this says");
    if (has("state_dict_type"))
      note("state_dict_type",
           "one checkpoint holds the state for any number of ranks; trireme ckpt export writes "
           "whole weights");
    if (has("save_16bit"))
      note("save_16bit", "trireme ckpt export --dtype writes whole 16-bit weights");
    if (has("leaf_units")) note("leaf_units", "units are not split below their class");
  }

  void units() {
    const Value& value = part("units");
    if (value.null()) return;
    if (value.is("model")) {
      set("parallel.units", "auto", "units");
    } else if (value.is("root")) {
      set("parallel.units", "none", "units");
    } else if (const auto size = value.at("min_params").integer()) {
      set("parallel.units", fmt::format("size:{}", *size), "units");
    } else if (const auto* names = std::get_if<Value::List>(&value.data)) {
      std::string list;
      for (const Value& name : *names)
        list += (list.empty() ? "" : ", ") + name.text().value_or("");
      set("parallel.units", is_own_block(list) ? "auto" : list, "units");
    }
  }

  // transformers' name of the block that the built-in model of the type has.
  bool is_own_block(std::string_view names) const {
    const Model& model = native_.config.model;
    if (!model.plugin.empty()) return false;
    return names == (model.type == "gpt2" ? "GPT2Block" : "LlamaDecoderLayer");
  }

  // --- precision

  void precision() {
    const Value& value = part("mixed_precision");
    if (value.null()) return;
    if (value.is("fp8")) {
      refuse("mixed_precision", "fp8 is not in this version", "bf16");
      return;
    }
    if (value.is("no")) {
      set("precision.compute", "fp32", "mixed_precision");
    } else {
      set_or_need("precision.compute", "mixed_precision");
    }
    if (value.is("fp16") && has("loss_scale")) loss_scale();
  }

  void loss_scale() {
    if (!part("loss_scale.dynamic").boolean().value_or(true)) {
      set_with("precision.loss_scale", fmt::format("{}", *part("loss_scale.value").number()),
               "mixed_precision");
      return;
    }
    const std::int64_t hysteresis = part("loss_scale.hysteresis").integer().value_or(1);
    set_with("precision.initial_scale", part("loss_scale.initial"), "mixed_precision");
    set_with("precision.growth_interval", part("loss_scale.window"), "mixed_precision");
    set_with("precision.hysteresis", hysteresis, "mixed_precision");
    if (hysteresis > 1) set_with("precision.min_scale", part("loss_scale.min"), "mixed_precision");
  }

  // --- batches

  void batch() {
    set_or_need("train.micro_batch_size", "batch.micro");
    const bool both = given("train.global_batch_size");
    if (part("grad_accum").is("auto") && !both) {
      refuse("grad_accum", "\"auto\", and nothing fills it",
             "a number, or --set train.global_batch_size=..., or --training-arguments FILE");
      return;
    }
    const auto global = part("batch.global").integer();
    if (global && origin("batch.global") != nullptr) {
      set("train.global_batch_size", *global, "batch.global");
      return;
    }
    if (both) return;
    if (part("batch.global").is("auto") && !part("grad_accum").integer()) {
      refuse("batch.global", "\"auto\", and nothing fills it",
             "a number, or --set train.global_batch_size=...");
      return;
    }
    const auto steps = part("grad_accum").integer();
    const auto micro = part("batch.micro").integer();
    if (!steps || (!micro && standard("grad_accum"))) return;
    product(micro.value_or(native_.config.train.micro_batch_size), *steps,
            standard("grad_accum") ? "batch.micro" : "grad_accum");
  }

  void product(std::int64_t micro, std::int64_t steps, std::string_view from) {
    const std::int64_t world = world_.value_or(out_.num_processes.value_or(1));
    std::int64_t global = 0;
    if (__builtin_mul_overflow(micro, steps, &global) ||
        __builtin_mul_overflow(global, world, &global)) {
      refuse(from, "the product of batch sizes does not fit 64 bits", "smaller sizes");
      return;
    }
    set("train.global_batch_size", global, from);
    out_.settings.back().source +=
        fmt::format(", {} x {} x {} (micro batch x accumulation x processes)", micro, steps, world);
  }

  // --- memory

  void offload() {
    constexpr std::pair<std::string_view, std::string_view> kParts[] = {
        {"params", "work"}, {"grads", "grad"}, {"optimizer", "optimizer"}};
    for (const auto& [theirs, ours] : kParts) {
      const std::string from = fmt::format("offload.{}", theirs);
      const Value& value = part(from);
      if (value.null() || (value.is("none") && standard(from))) continue;
      // Where the optimizer runs is where DeepSpeed's gradients go.
      const std::string_view place = origin(from) == nullptr ? "offload.optimizer" : from;
      set(fmt::format("offload.{}", ours), value.is("cpu") ? Value("host") : value, place);
    }
    if (part("offload.activations").is("cpu"))
      note("offload.activations", "activations that are kept stay where they were computed");
    if (has("nvme_path")) set("offload.nvme_path", part("nvme_path"), "nvme_path");
  }

  void memory() {
    if (const auto on = part("activation_checkpointing").boolean())
      set("train.recompute", *on ? "full" : "none", "activation_checkpointing");
    if (has("activation_options"))
      note("activation_options", "whole blocks are computed again, with the same numbers");
  }

  // --- optimizer

  void clip() {
    const Value& value = part("grad_clip");
    if (value.is("auto") && standard("grad_clip")) return;
    set_or_need("optimizer.clip_norm", "grad_clip");
  }

  void optimizer() {
    const auto type = part("optimizer.type").text();
    if (!type) return;
    const std::string name = native_optimizer(*type);
    if (name.empty()) return;
    set("optimizer.type", name, "optimizer.type");
    if (const auto* const params = std::get_if<Value::Map>(&part("optimizer").data))
      for (const auto& [key, value] : *params) optimizer_parameter(name, key, value);
    optimizer_defaults(name);
  }

  std::string native_optimizer(const std::string& type) {
    constexpr std::pair<std::string_view, std::string_view> kNames[] = {
        {"adamw", "adamw"},         {"sgd", "sgd"},   {"adagrad", "adagrad"},
        {"adafactor", "adafactor"}, {"lion", "lion"}, {"lion_32bit", "lion"}};
    if (type == "adam")  // DeepSpeed's decouples the decay unless told otherwise
      return part("optimizer.adam_w_mode").boolean().value_or(true) ? "adamw" : "adam";
    std::vector<std::string> all;
    for (const auto& [theirs, ours] : kNames) {
      if (type == theirs) return std::string(ours);
      all.emplace_back(theirs);
    }
    refuse("optimizer.type", fmt::format("the optimizer {} is not in this version", type),
           nearest(type.substr(0, 100), all).value_or("adamw"));
    return {};
  }

  void optimizer_parameter(const std::string& type, const std::string& key, const Value& value) {
    struct Parameter {
      std::string_view theirs, ours, types;
    };
    constexpr Parameter kParameters[] = {
        {"lr", "lr", ""},
        {"betas", "betas", "adamw adam lion"},
        {"eps", "eps", "adamw adam adagrad"},
        {"weight_decay", "weight_decay", ""},
        {"amsgrad", "amsgrad", "adamw adam"},
        {"momentum", "momentum", "sgd"},
        {"dampening", "dampening", "sgd"},
        {"nesterov", "nesterov", "sgd"},
        {"lr_decay", "lr_decay", "adagrad"},
        {"initial_accumulator_value", "initial_accumulator", "adagrad"}};
    if (key == "type" || key == "adam_w_mode" || key == "torch_adam") return;
    const std::string from = fmt::format("optimizer.{}", key);
    if (key == "bias_correction" && value.boolean().value_or(false)) return;
    const auto found = std::ranges::find(kParameters, key, &Parameter::theirs);
    if (found == std::end(kParameters)) {
      std::vector<std::string> all;
      for (const Parameter& known : kParameters) all.emplace_back(known.theirs);
      refuse(from, "not an option of the optimizers here",
             nearest(std::string_view(key).substr(0, 100), all).value_or("leave it out"));
    } else if (found->types.empty() || found->types.find(type) != std::string_view::npos) {
      set_or_need(fmt::format("optimizer.{}", found->ours), from);
    } else if (!standard(from)) {
      note(from, fmt::format("{} does not use it", type));
    }
  }

  // What the file's program takes where it is silent, which is not what we take.
  void optimizer_defaults(const std::string& type) {
    const auto otherwise = [&](std::string_view key, const Value& value) {
      if (!has(fmt::format("optimizer.{}", key)))
        set_with(fmt::format("optimizer.{}", key), value, "optimizer.type");
    };
    if (type == "adamw" || type == "adam") otherwise("betas", Value::List{0.9, 0.999});
    if (type == "lion") otherwise("betas", Value::List{0.9, 0.99});
    otherwise("weight_decay", 0.0);
    otherwise("lr", 1e-3);
    if (type == "adagrad") otherwise("eps", 1e-10);
    // transformers leaves norms and biases alone, an optimizer of DeepSpeed's file does not.
    set_with("optimizer.decay_all", !grouped_decay_, "optimizer.type");
  }

  // --- length and schedule

  std::optional<std::int64_t> total_steps() const {
    if (given("train.max_steps")) return native_.config.train.max_steps;
    return part("run.max_steps").integer();
  }

  void length() {
    if (!has("run")) return;
    if (has("run.max_steps")) {
      set("train.max_steps", part("run.max_steps"), "run.max_steps");
    } else if (!given("train.max_steps")) {
      const bool silent = standard("run.epochs");
      refuse(silent ? "run.max_steps" : "run.epochs",
             fmt::format("{} epochs: how many steps that is depends on the data",
                         part("run.epochs").json()),
             "max_steps: N, or --set train.max_steps=N (samples / batch x epochs)");
    }
    if (has("run.seed")) set("run.seed", part("run.seed"), "run.seed");
  }

  // A count, or a share of all steps.
  std::optional<std::int64_t> steps_of(std::string_view from) {
    const auto number = part(from).number();
    if (!number) return std::nullopt;
    if (*number == 0 || *number >= 1) return static_cast<std::int64_t>(std::min(*number, 1e12));
    const auto total = total_steps();
    if (!total) return std::nullopt;  // reported with the length
    return static_cast<std::int64_t>(std::ceil(*number * static_cast<double>(*total)));
  }

  void schedule() {
    const auto type = part("scheduler.type").text();
    if (!type) return;
    set("schedule.type", *type, "scheduler.type");
    if (has("scheduler.warmup") || foreign_.kind == ForeignKind::kTrainingArguments) {
      if (!deepspeed_schedule(*type)) return transformers_schedule(*type);
    }
    deepspeed_parameters(*type);
  }

  static bool deepspeed_schedule(std::string_view type) {
    return type.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 0;
  }

  void transformers_schedule(const std::string& type) {
    const bool without = type == "constant" || type == "reduce_lr_on_plateau" || type == "greedy";
    const auto share = part("scheduler.warmup.ratio").number();
    auto steps = part("scheduler.warmup.steps").integer();
    if (share) steps = steps_of("scheduler.warmup.ratio");
    if (without) {
      set_with("schedule.warmup_steps", 0, "scheduler.type");
    } else if (steps) {
      set("schedule.warmup_steps", *steps, "scheduler.warmup");
    }
    if (type == "linear" || type == "cosine")
      set_with("schedule.min_lr_ratio", 0, "scheduler.type");
    transformers_options(part("scheduler.options"));
  }

  void transformers_options(const Value& options) {
    if (options.null()) return;
    const auto* const map = std::get_if<Value::Map>(&options.data);
    if (map == nullptr) {
      refuse("scheduler.options", "a group of options is expected", "{num_cycles: 1}");
      return;
    }
    Value rest = Value::Map{};
    for (const auto& [key, value] : *map) {
      if (key == "min_lr_rate" || key == "min_lr_ratio") {
        set("schedule.min_lr_ratio", value, "scheduler.options");
      } else {
        rest.set(key, value);
      }
    }
    if (!std::get<Value::Map>(rest.data).empty())
      set("schedule.options", rest, "scheduler.options");
  }

  void deepspeed_parameters(const std::string& type) {
    struct Known {
      std::string_view type, names;
    };
    constexpr std::string_view kWarmup = "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type";
    constexpr Known kKnown[] = {
        {"WarmupLR", kWarmup},
        {"WarmupDecayLR",
         "total_num_steps warmup_min_lr warmup_max_lr warmup_num_steps warmup_type"},
        {"WarmupCosineLR",
         "total_num_steps warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type"},
        {"OneCycle",
         "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size "
         "cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum "
         "cycle_min_mom cycle_max_mom decay_mom_rate"},
        {"LRRangeTest",
         "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate "
         "lr_range_test_staircase"}};
    const auto known = std::ranges::find(kKnown, std::string_view(type), &Known::type);
    if (known == std::end(kKnown)) return;  // schedule.type itself is refused
    Value options = Value::Map{};
    if (const auto* const params = std::get_if<Value::Map>(&part("scheduler").data))
      for (const auto& [key, value] : *params) {
        if (key == "type" || key == "last_batch_iteration") continue;
        deepspeed_parameter(known->names, key, value, options);
      }
    if (type.starts_with("Warmup") && !has("scheduler.warmup_num_steps"))
      set_with("schedule.warmup_steps", 1000, "scheduler.type");
    if ((type == "WarmupLR" || type == "WarmupDecayLR") && !has("scheduler.warmup_max_lr"))
      options.set("warmup_max_lr", 0.001);
    if (!std::get<Value::Map>(options.data).empty())
      set("schedule.options", options, "scheduler.type");
  }

  void deepspeed_parameter(std::string_view names, const std::string& key, const Value& value,
                           Value& options) {
    const std::string from = fmt::format("scheduler.{}", key);
    if (fmt::format(" {} ", names).find(fmt::format(" {} ", key)) == std::string::npos) {
      std::vector<std::string> all;
      for (std::string_view rest = names; !rest.empty();) {
        const auto end = std::min(rest.find(' '), rest.size());
        all.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      refuse(from, "no option of this schedule",
             nearest(std::string_view(key).substr(0, 100), all).value_or("leave it out"));
    } else if (key == "warmup_num_steps") {
      set_or_need("schedule.warmup_steps", from);
    } else if (key == "total_num_steps") {
      if (!value.is("auto")) set("schedule.total_steps", value, from);
    } else if (!value.is("auto")) {
      options.set(key, value);
    } else if (key == "warmup_max_lr" && !given("optimizer.lr")) {
      refuse(from, "\"auto\", and nothing fills it",
             "a number, or --set optimizer.lr=..., or --training-arguments FILE");
    }
  }

  // --- saving, evaluation, log

  void saving() {
    if (!has("run")) return;
    folder();
    interval("run.save", "checkpoint.every", "save_strategy: steps");
    set("checkpoint.keep", part("run.save.keep").integer().value_or(0), "run.save");
    interval("run.eval", "train.eval_every", "eval_strategy: steps");
    if (const auto steps = steps_of("run.logging_steps"))
      set("log.every", std::max<std::int64_t>(1, *steps), "run.logging_steps");
  }

  void folder() {
    const auto text = part("run.output_dir").text();
    if (!text) return;
    std::filesystem::path path = std::filesystem::path(*text).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    const std::string parent = path.parent_path().string();
    set("run.name", path.filename().string(), "run.output_dir");
    set("run.dir", parent.empty() ? "." : parent, "run.output_dir");
  }

  void interval(const std::string& from, std::string_view path, std::string instead) {
    const Value& strategy = part(from + ".strategy");
    if (strategy.is("no")) {
      set(path, 0, from);
    } else if (!strategy.is("steps")) {
      refuse(from,
             fmt::format("'{}' is not in this version, which counts steps", shown_value(strategy)),
             std::move(instead));
    } else if (const auto steps = steps_of(from + ".steps")) {
      set(path, *steps, from);
    }
  }

  // --- the rest

  void extras() {
    if (part("extra.load_best_model_at_end").boolean().value_or(false))
      refuse("extra.load_best_model_at_end", "the best model is not loaded back in this version",
             "false; trireme ckpt export takes any checkpoint that is kept");
    for (const std::string_view name : {"extra.mpirun_hostfile", "extra.hostfile"})
      if (const auto text = part(name).text()) out_.host_file = *text;
    if (has("extra.launcher")) note("extra.launcher", "trireme launch starts ranks with MPI");
    if (part("extra.device").is("cpu")) note("extra.device", "training computes on the CPU here");
    number_type("extra.grad_accum_dtype", "fp32");
    if (has("optimizer.options"))
      refuse("optimizer.options", "not read here", "optimizer settings natively, as optimizer.eps");
    const Value& type = part("extra.communication_data_type");
    if (type.is("fp16")) {
      number_type("extra.communication_data_type", "fp32");
    } else if (!type.null()) {
      set("precision.reduce", type, "extra.communication_data_type");
    }
  }

  void number_type(std::string_view name, const std::string& only) {
    if (has(name) && !part(name).is(only))
      refuse(name, fmt::format("gradients are always added in {}", only), only);
  }

  // What the reader found to have no effect: fine, a setting after all, or reason to refuse.
  void idle() {
    for (const ForeignFinding& finding : foreign_.findings) {
      if (finding.severity == Severity::kNotApplicable && late(finding)) continue;
      out_.findings.push_back(finding);
      if (finding.severity == Severity::kNotApplicable)
        foreign::refuse_if_it_changes_results(foreign_.kind, foreign_.meaning,
                                              out_.findings.back());
    }
  }

  bool late(const ForeignFinding& finding) {
    const auto give = [&](std::string_view path, const Value& value) {
      out_.settings.push_back({std::string(path), value.json(),
                               fmt::format("{}:{} ({})", finding.file, finding.line, finding.path),
                               false});
      return true;
    };
    if (finding.path == "fp16.consecutive_hysteresis" && part("mixed_precision").is("fp16") &&
        part("loss_scale.hysteresis").integer().value_or(1) > 1)
      return give("precision.consecutive_hysteresis", finding.value);
    if (foreign_.kind != ForeignKind::kTrainingArguments) return false;
    if (finding.path == "ddp_timeout") return give("run.timeout", finding.value);
    if (finding.path == "train_sampling_strategy" && !finding.value.is("group_by_length"))
      return give("data.shuffle", finding.value.is("random"));
    return false;
  }

  const Foreign& foreign_;
  const Loaded& native_;
  std::optional<std::int64_t> world_;
  bool grouped_decay_;
  Adapted& out_;
};

// What TrainingArguments fill "auto" with, by their own names.
Value training_values(const Foreign& training) {
  const Value& m = training.meaning;
  Value out = Value::Map{};
  const auto put = [&](std::string_view name, const Value& value) {
    if (!value.null()) out.set(name, value);
  };
  put("per_device_train_batch_size", m.at("batch").at("micro"));
  put("gradient_accumulation_steps", m.at("grad_accum"));
  put("max_grad_norm", m.at("grad_clip"));
  put("learning_rate", m.at("optimizer").at("lr"));
  put("weight_decay", m.at("optimizer").at("weight_decay"));
  put("adam_epsilon", m.at("optimizer").at("eps"));
  if (const auto* betas = std::get_if<Value::List>(&m.at("optimizer").at("betas").data);
      betas != nullptr && betas->size() == 2) {
    put("adam_beta1", betas->at(0));
    put("adam_beta2", betas->at(1));
  }
  const Value& warmup = m.at("scheduler").at("warmup");
  put("warmup_steps", warmup.at("ratio").null() ? warmup.at("steps") : warmup.at("ratio"));
  put("bf16", m.at("mixed_precision").is("bf16"));
  put("fp16", m.at("mixed_precision").is("fp16"));
  return out;
}

bool belongs_to_schedule(const Setting& setting) { return setting.path.starts_with("schedule."); }

// Settings of several files: an explicit one replaces a default; two that differ are an error.
class Merge {
 public:
  void add(const std::vector<Setting>& settings, std::vector<ForeignFinding>& findings) {
    const bool own_schedule = std::ranges::any_of(settings, [](const Setting& setting) {
      return setting.path == "schedule.type" && !setting.standard;
    });
    if (own_schedule)  // defaults of another schedule do not mix with it
      std::erase_if(all_,
                    [](const Setting& old) { return belongs_to_schedule(old) && old.standard; });
    for (const Setting& setting : settings) take(setting, findings);
  }

  // Whoever set it before does not count.
  void forget(std::string_view path) {
    std::erase_if(all_, [&](const Setting& old) { return old.path == path; });
  }

  std::vector<Setting> all() && { return std::move(all_); }

 private:
  void take(const Setting& setting, std::vector<ForeignFinding>& findings) {
    const auto old = std::ranges::find(all_, setting.path, &Setting::path);
    if (old == all_.end()) {
      all_.push_back(setting);
    } else if (old->standard && !setting.standard) {
      *old = setting;
    } else if (!old->standard && !setting.standard && old->value != setting.value) {
      ForeignFinding finding;
      finding.file = setting.source;
      finding.path = setting.path;
      finding.why = fmt::format("{} contradicts {} of {}", setting.value, old->value, old->source);
      finding.suggest = "one of the two";
      findings.push_back(std::move(finding));
    }
  }

  std::vector<Setting> all_;
};

}  // namespace

Adapted adapt(const std::vector<ForeignFile>& files, const Loaded& native,
              std::optional<std::int64_t> world_size) {
  std::vector<ForeignFile> ordered = files;
  // TrainingArguments fill "auto" of the others.
  std::ranges::stable_sort(ordered, std::ranges::greater{}, [](const ForeignFile& file) {
    return file.kind == ForeignKind::kTrainingArguments;
  });
  ForeignContext context;
  context.world_size = world_size;
  context.hidden_size = native.config.model.hidden;
  if (native.sources.contains("train.max_steps") &&
      native.sources.at("train.max_steps") != "default")
    context.total_steps = native.config.train.max_steps;
  Adapted out;
  Merge merge;
  bool grouped_decay = false;
  for (const ForeignFile& file : ordered) {
    const Foreign foreign = read_foreign(file.kind, file.file, context);
    if (file.kind == ForeignKind::kTrainingArguments) {
      grouped_decay = true;
      context.training_args = training_values(foreign);
      if (!context.total_steps)
        context.total_steps = foreign.meaning.at("run").at("max_steps").integer();
    }
    out.settings.clear();
    if (foreign.accepted()) {
      Mapping(foreign, native, world_size, grouped_decay, out).run();
      if (!context.world_size) context.world_size = out.num_processes;
    } else {
      out.findings.insert(out.findings.end(), foreign.findings.begin(), foreign.findings.end());
    }
    // A DeepSpeed file that is silent clips at its own default; the reader has warned of it.
    if (file.kind == ForeignKind::kDeepSpeed) merge.forget("optimizer.clip_norm");
    merge.add(out.settings, out.findings);
  }
  out.settings = std::move(merge).all();
  return out;
}

ForeignKind kind_of_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw_errno("open", file.string());
  std::string text(detail::kMaxTextBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (const auto kind = guess_foreign(text)) return *kind;
  throw Error(ErrorKind::kConfig,
              fmt::format("{} is no file of Accelerate, DeepSpeed or TrainingArguments that could "
                          "be told by its keys",
                          file.string()),
              "name its kind: --accelerate FILE, --deepspeed FILE or --training-arguments FILE");
}

}  // namespace trireme::config
