// What the keys of a DeepSpeed file mean together, and what fills "auto".
#include "reading.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::config::foreign {

namespace {

constexpr std::string_view kPeer = "deepspeed 0.19.8";

class DeepSpeed {
 public:
  DeepSpeed(Reading& reading, const ForeignContext& context, Foreign& out)
      : read_(reading), context_(context), out_(out) {}

  void run() {
    for (const std::string_view part :
         {"strategy", "mesh", "num_processes", "num_machines", "batch", "mixed_precision",
          "loss_scale", "grad_accum", "grad_clip", "nvme_path", "activation_checkpointing",
          "activation_options", "save_16bit", "zero", "optimizer", "scheduler"})
      out_.meaning.set(part, Value());
    if (context_.world_size) out_.meaning.set("num_processes", *context_.world_size);
    precision();
    stage();
    offload();
    batch();
    zero();
    algorithm("optimizer");
    algorithm("scheduler");
    activations();
    extras();
    clip();  // last: its notices are for files that are taken
  }

 private:
  const Value& argument(std::string_view name) const { return context_.training_args.at(name); }

  bool automatic(const Hit* hit) const { return hit != nullptr && hit->value.is("auto"); }

  // "auto" as what fills it, by the name of a training argument; "auto" when nothing does.
  Value filled(std::string_view part, const Hit& hit, Value value, std::string_view from) {
    Origin origin = read_.origin_of(hit);
    origin.filled = value.null() ? "" : std::string(from);
    if (value.null()) value = "auto";
    read_.mean(part, value, std::move(origin));
    return value;
  }

  Value take(std::string_view part, const Hit& hit, std::string_view from) {
    if (hit.value.is("auto")) return filled(part, hit, argument(from), from);
    mismatch(hit, from);
    read_.mean(part, hit.value, hit);
    return hit.value;
  }

  // A number that disagrees with the training arguments.
  void mismatch(const Hit& hit, std::string_view from) {
    const auto given = hit.value.number();
    const auto wanted = argument(from).number();
    if (!given || !wanted || *given == *wanted) return;
    read_.error(hit,
                fmt::format("{} is not what the training arguments say: {} {}", hit.value.json(),
                            from, argument(from).json()),
                "\"auto\"");
  }

  void precision() {
    const Hit* const half = read_.hit("fp16.enabled");
    const Hit* const brain = read_.hit("bf16.enabled");
    const bool half_on = enabled(half, "fp16");
    const bool brain_on = enabled(brain, "bf16");
    if (half_on && brain_on) {
      const bool half_first = half->line <= brain->line;
      const Hit& later = half_first ? *brain : *half;
      const Hit& first = half_first ? *half : *brain;
      read_.error(later,
                  fmt::format("{} is enabled on line {} as well",
                              first.path.substr(0, first.path.find('.')), first.line),
                  "keep one");
      return;
    }
    const Hit* const cast = read_.hit("torch_autocast.enabled");
    if (half_on || brain_on) {
      named(half_on ? *half : *brain, half_on ? "fp16" : "bf16");
    } else if (cast != nullptr && *cast->value.boolean()) {
      const Hit* const type = read_.hit("torch_autocast.dtype");
      const bool is_half = type != nullptr && type->value.is("float16");
      read_.mean("mixed_precision", is_half ? "fp16" : "bf16", type != nullptr ? *type : *cast);
    } else if (unfilled(brain, "bf16") || unfilled(half, "fp16")) {
      filled("mixed_precision", unfilled(brain, "bf16") ? *brain : *half, Value(), "");
    } else if (const Hit* const any = brain != nullptr ? brain : half) {
      read_.mean("mixed_precision", "no", *any);
    } else if (read_.line("fp16.enabled") == 0 && read_.line("bf16.enabled") == 0) {
      read_.mean("mixed_precision", "no", kPeer);
    }
    if (out_.meaning.at("mixed_precision").is("fp16")) loss_scale();
  }

  bool enabled(const Hit* hit, std::string_view from) const {
    if (hit == nullptr) return false;
    const Value& value = automatic(hit) ? argument(from) : hit->value;
    return value.boolean().value_or(false);
  }

  bool unfilled(const Hit* hit, std::string_view from) const {
    return automatic(hit) && argument(from).null() && context_.training_args.null();
  }

  void named(const Hit& hit, std::string_view type) {
    if (hit.value.is("auto")) {
      filled("mixed_precision", hit, std::string(type), type);
    } else {
      read_.mean("mixed_precision", std::string(type), hit);
    }
  }

  Value or_else(std::string_view path, Value otherwise) const {
    const Hit* const hit = read_.hit(path);
    return hit == nullptr ? otherwise : hit->value;
  }

  void loss_scale() {
    Value out = Value::Map{};
    const double value = or_else("fp16.loss_scale", 0).number().value_or(0);
    out.set("dynamic", value == 0);
    if (value != 0) {
      out.set("value", value);
    } else {
      const std::int64_t power = *or_else("fp16.initial_scale_power", 16).integer();
      out.set("initial", std::int64_t{1} << static_cast<unsigned>(power));
      out.set("window", or_else("fp16.loss_scale_window", 1000));
      out.set("hysteresis", or_else("fp16.hysteresis", 2));
      out.set("min", or_else("fp16.min_loss_scale", 1));
    }
    out_.meaning.set("loss_scale", std::move(out));
  }

  void stage() {
    if (const Hit* const hit = read_.hit("zero_optimization.stage")) {
      stage_ = *hit->value.integer();
      read_.mean("strategy", stage_ == 0 ? std::string("ddp") : fmt::format("zero{}", stage_),
                 *hit);
    } else if (read_.line("zero_optimization.stage") == 0) {
      stage_ = 0;
      read_.mean("strategy", "ddp", kPeer);
    }
    for (const auto& [path, least] :
         {std::pair<std::string_view, std::int64_t>{"zero_optimization.zero_hpz_partition_size", 2},
          {"zero_optimization.mics_shard_size", 1}}) {
      const Hit* const hit = read_.hit(path);
      if (hit == nullptr || *hit->value.integer() < least) continue;
      Value mesh = Value::Map{};
      mesh.set("secondary_shard", hit->value);
      out_.meaning.set("mesh", std::move(mesh));
      read_.mean("strategy", "unsupported", *hit);
    }
    for (const std::string_view path :
         {"zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_gradients",
          "zero_optimization.zero_quantized_nontrainable_weights"}) {
      const Hit* const hit = read_.hit(path);
      if (hit != nullptr && *hit->value.boolean()) read_.mean("strategy", "unsupported", *hit);
    }
    if (const Hit* const hit = read_.hit("sequence_parallel_size"))
      if (*hit->value.integer() > 1) read_.mean("strategy", "unsupported", *hit);
  }

  std::string device(std::string_view group, std::string_view old, std::string_view part,
                     bool possible, std::string_view why, std::string_view suggest) {
    const Hit* const hit = read_.hit(fmt::format("zero_optimization.{}.device", group));
    const Hit* const flag = read_.hit(old);
    std::string where = "none";
    const Hit* origin = hit;
    if (hit != nullptr) {
      where = *hit->value.text();
    } else if (flag != nullptr) {
      origin = flag;
      where = *flag->value.boolean() ? "cpu" : "none";
    }
    const std::string name = fmt::format("offload.{}", part);
    if (origin == nullptr) {
      read_.mean(name, where, kPeer);
      return where;
    }
    if (where != "none" && !possible) {
      read_.error(*origin, std::string(why), std::string(suggest));
      where = "none";
    }
    read_.mean(name, where, *origin);
    const Hit* const folder = read_.hit(fmt::format("zero_optimization.{}.nvme_path", group));
    if (where != "nvme") return where;
    if (folder == nullptr) {
      read_.error(*origin, "nvme needs a folder", fmt::format("{}.nvme_path", group));
    } else {
      read_.mean("nvme_path", folder->value, *folder);
    }
    return where;
  }

  void offload() {
    const bool known = stage_ >= 0;
    const std::string params = device(
        "offload_param", "zero_optimization.cpu_offload_params", "params", !known || stage_ == 3,
        "parameters are offloaded only at stage 3", "stage: 3, or device: none");
    const std::string optimizer = device(
        "offload_optimizer", "zero_optimization.cpu_offload", "optimizer", !known || stage_ > 0,
        "nothing is sharded at stage 0", "stage: 1 or more, or device: none");
    Value group = out_.meaning.at("offload");
    group.set("grads", optimizer == "none" ? "none" : "cpu");
    const bool activations =
        or_else("activation_checkpointing.cpu_checkpointing", false).boolean().value_or(false);
    group.set("activations", activations ? "cpu" : "none");
    out_.meaning.set("offload", std::move(group));
  }

  // --- batches: global = micro x accumulation x processes

  std::optional<std::int64_t> size(std::string_view part, const Hit* hit, std::string_view from) {
    if (hit == nullptr) return std::nullopt;
    return take(part, *hit, from).integer();
  }

  void batch() {
    const Hit* const global_hit = read_.hit("train_batch_size");
    const Hit* const micro_hit = read_.hit("train_micro_batch_size_per_gpu");
    const Hit* const steps_hit = read_.hit("gradient_accumulation_steps");
    // A damaged one is reported already; the arithmetic would only repeat it.
    const bool damaged = damaged_size("train_batch_size") ||
                         damaged_size("train_micro_batch_size_per_gpu") ||
                         damaged_size("gradient_accumulation_steps");
    auto micro = size("batch.micro", micro_hit, "per_device_train_batch_size");
    auto steps = size("grad_accum", steps_hit, "gradient_accumulation_steps");
    std::optional<std::int64_t> global;
    if (global_hit != nullptr) global = global_hit->value.integer();
    if (!damaged && global_hit == nullptr && micro_hit == nullptr) {
      read_.error("train_micro_batch_size_per_gpu", 0, "neither this nor train_batch_size is given",
                  "train_micro_batch_size_per_gpu: 1");
      return;
    }
    if (damaged || !context_.world_size) {
      if (global) read_.mean("batch.global", *global, *global_hit);
      if (steps_hit == nullptr && micro && !global && !damaged)
        read_.mean("grad_accum", 1, "computed");
      return;
    }
    infer(global_hit, global, micro, steps);
  }

  bool damaged_size(std::string_view path) const {
    return read_.line(path) != 0 && read_.hit(path) == nullptr;
  }

  void infer(const Hit* global_hit, std::optional<std::int64_t> global,
             std::optional<std::int64_t> micro, std::optional<std::int64_t> steps) {
    const std::int64_t world = *context_.world_size;
    const bool steps_open = read_.hit("gradient_accumulation_steps") == nullptr;
    const bool micro_open = read_.hit("train_micro_batch_size_per_gpu") == nullptr;
    if (!steps && steps_open && (!global || !micro)) {
      steps = 1;
      read_.mean("grad_accum", 1, "computed");
    }
    if (global && micro && !steps && steps_open) {
      if (*global % (*micro * world) != 0) return uneven(*global_hit, *global, *micro * world);
      steps = *global / (*micro * world);
      read_.mean("grad_accum", *steps, "computed");
    } else if (global && steps && !micro && micro_open) {
      if (*global % (*steps * world) != 0) return uneven(*global_hit, *global, *steps * world);
      micro = *global / (*steps * world);
      read_.mean("batch.micro", *micro, "computed");
    }
    if (!micro || !steps) {
      if (automatic(global_hit)) filled("batch.global", *global_hit, Value(), "");
      return;
    }
    settle(global_hit, global, *micro, *steps);
  }

  void settle(const Hit* global_hit, std::optional<std::int64_t> global, std::int64_t micro,
              std::int64_t steps) {
    const std::int64_t world = *context_.world_size;
    std::int64_t product = 0;
    if (__builtin_mul_overflow(micro, steps, &product) ||
        __builtin_mul_overflow(product, world, &product)) {
      read_.error("train_batch_size", global_hit == nullptr ? 0 : global_hit->line,
                  "the product of batch sizes does not fit 64 bits", "smaller sizes");
      return;
    }
    if (global_hit == nullptr) {
      read_.mean("batch.global", product, "computed");
    } else if (automatic(global_hit)) {
      filled("batch.global", *global_hit, product, "computed");
    } else if (*global == product) {
      read_.mean("batch.global", product, *global_hit);
    } else {
      const bool whole = *global % (micro * world) == 0;
      read_.error(
          *global_hit,
          fmt::format("{} is not {} x {} x {} = {} (micro batch x accumulation x processes)",
                      *global, micro, steps, world, product),
          fmt::format(
              "{}{}", product,
              whole ? fmt::format(", or gradient_accumulation_steps: {}", *global / (micro * world))
                    : ""));
    }
  }

  void uneven(const Hit& hit, std::int64_t global, std::int64_t divisor) {
    const std::int64_t lower = global / divisor * divisor;
    read_.error(
        hit, fmt::format("{} does not divide by {}", global, divisor),
        lower > 0 ? fmt::format("{} or {}", lower, lower + divisor) : fmt::format("{}", divisor));
  }

  void clip() {
    if (const Hit* const hit = read_.hit("gradient_clipping")) {
      take("grad_clip", *hit, "max_grad_norm");
      return;
    }
    if (read_.line("gradient_clipping") != 0) return;
    read_.mean("grad_clip", 1.0, kPeer);
    if (!out_.accepted()) return;
    read_.warn("gradient_clipping", 0,
               "absent: this release of DeepSpeed clips at 1.0, earlier ones did not clip",
               "gradient_clipping: 1.0");
    const auto wanted = argument("max_grad_norm").number();
    if (wanted && *wanted != 1.0)
      read_.warn("gradient_clipping", 0,
                 fmt::format("the training arguments say max_grad_norm {} and the file has no "
                             "gradient_clipping to fill",
                             argument("max_grad_norm").json()),
                 "gradient_clipping: \"auto\"");
  }

  // --- the ZeRO section as written

  Value sized(std::string_view name, const Hit& hit) const {
    if (!hit.value.is("auto") || !context_.hidden_size) return hit.value;
    const auto hidden = static_cast<double>(*context_.hidden_size);
    if (name == "reduce_bucket_size") return static_cast<std::int64_t>(hidden * hidden);
    if (name == "prefetch_bucket_size") return static_cast<std::int64_t>(0.9 * hidden * hidden);
    if (name == "param_persistence_threshold") return static_cast<std::int64_t>(10 * hidden);
    return hit.value;
  }

  void zero() {
    Value out = Value::Map{};
    for (const auto& [key, hit] : read_.below("zero_optimization")) {
      std::string name = key;
      if (name.starts_with("stage3_")) name.erase(0, 7);
      if (name == "stage" || name.starts_with("cpu_offload") || name.find('.') != std::string::npos)
        continue;
      if (name == "gather_fp16_weights_on_model_save") name = "gather_16bit_weights_on_model_save";
      Value value = sized(name, *hit);
      if (name == "offload_optimizer" || name == "offload_param") drop(value, "nvme_path");
      out.set(name, std::move(value));
    }
    out_.meaning.set("zero", std::move(out));
    if (const Hit* const leaves = read_.hit("zero_optimization.leaf_module.classes"))
      read_.mean("leaf_units", leaves->value, *leaves);
    const Hit* const save =
        read_.hit({"zero_optimization.stage3_gather_16bit_weights_on_model_save",
                   "zero_optimization.gather_16bit_weights_on_model_save",
                   "zero_optimization.stage3_gather_fp16_weights_on_model_save"});
    if (stage_ != 3) return;
    if (save != nullptr) {
      read_.mean("save_16bit", save->value, *save);
    } else {
      read_.mean("save_16bit", false, kPeer);
    }
  }

  static void drop(Value& group, std::string_view key) {
    auto* const map = std::get_if<Value::Map>(&group.data);
    if (map != nullptr) std::erase_if(*map, [&](const auto& entry) { return entry.first == key; });
  }

  // --- optimizer and scheduler

  Value warmup_steps() const {
    const auto steps = argument("warmup_steps").number();
    if (!steps) return {};
    if (*steps >= 1 || *steps == 0) return static_cast<std::int64_t>(*steps);
    if (!context_.total_steps) return {};
    return static_cast<std::int64_t>(
        std::ceil(*steps * static_cast<double>(*context_.total_steps)));
  }

  Value or_argument(std::string_view name, Value otherwise) const {
    if (context_.training_args.null()) return {};
    const Value& given = argument(name);
    return given.null() ? otherwise : given;
  }

  // What fills "auto" in the parameters, null when nothing does.
  Value parameter(std::string_view name) const {
    if (name == "lr" || name == "warmup_max_lr") return argument("learning_rate");
    if (name == "weight_decay") return or_argument("weight_decay", 0.0);
    if (name == "eps") return or_argument("adam_epsilon", 1e-8);
    if (name == "warmup_min_lr") return context_.training_args.null() ? Value() : Value(0);
    if (name == "warmup_num_steps") return warmup_steps();
    if (name == "total_num_steps" && context_.total_steps) return *context_.total_steps;
    if (name == "betas" && !context_.training_args.null())
      return Value::List{or_argument("adam_beta1", 0.9), or_argument("adam_beta2", 0.999)};
    return {};
  }

  void algorithm(std::string_view group) {
    const Hit* const section = read_.hit(group);
    if (section == nullptr) return;
    const Hit* const type = read_.hit(fmt::format("{}.type", group));
    if (type == nullptr) {
      read_.error(*section, "has no type",
                  group == "optimizer" ? "type: \"AdamW\"" : "type: \"WarmupLR\"");
      return;
    }
    std::string name = *type->value.text();
    if (group == "optimizer")
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    read_.mean(fmt::format("{}.type", group), name, *type);
    const Hit* const params = read_.hit(fmt::format("{}.params", group));
    if (params == nullptr) return;
    const auto* const map = std::get_if<Value::Map>(&params->value.data);
    if (map == nullptr) {
      read_.error(*params, "a group of keys is expected", "");
      return;
    }
    for (const auto& [key, value] : *map) {
      const Value fill = value.is("auto") ? parameter(key) : Value();
      Origin origin = read_.origin_of(*params);
      origin.key += "." + key;
      if (value.is("auto")) origin.filled = fill.null() ? "" : "training arguments";
      read_.mean(fmt::format("{}.{}", group, key), fill.null() ? value : fill, std::move(origin));
    }
  }

  void activations() {
    const Hit* const section = read_.hit("activation_checkpointing");
    if (section == nullptr) return;
    out_.meaning.set("activation_options", section->value);
    read_.below("activation_checkpointing");
  }

  void extras() {
    if (const Hit* const hit = read_.hit("data_types.grad_accum_dtype"))
      read_.mean("extra.grad_accum_dtype", hit->value, *hit);
    if (const Hit* const hit = read_.hit("communication_data_type"))
      read_.mean("extra.communication_data_type", hit->value, *hit);
  }

  Reading& read_;
  const ForeignContext& context_;
  Foreign& out_;
  std::int64_t stage_ = -1;  // unknown
};

}  // namespace

void interpret_deepspeed(const Document& document, const ForeignContext& context, Foreign& out) {
  Reading reading(document, deepspeed_keys(), {}, out);
  if (reading.unreadable()) return;
  DeepSpeed(reading, context, out).run();
  reading.finish();
}

}  // namespace trireme::config::foreign
