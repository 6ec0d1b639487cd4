// What the fields of TrainingArguments mean together.
#include "reading.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::config::foreign {

namespace {

constexpr std::string_view kPeer = "transformers 5.24.0";

constexpr std::string_view kSchedules =
    "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_sqrt|"
    "reduce_lr_on_plateau|cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay|greedy";

class Training {
 public:
  Training(Reading& reading, std::filesystem::path file, const ForeignContext& context,
           Foreign& out)
      : read_(reading), file_(std::move(file)), context_(context), out_(out) {}

  void run() {
    for (const std::string_view part :
         {"strategy", "mesh", "num_processes", "num_machines", "batch", "mixed_precision",
          "grad_accum", "grad_clip", "offload", "nvme_path", "activation_checkpointing",
          "activation_options", "reshard_after_forward", "units", "state_dict_type", "optimizer",
          "scheduler", "run"})
      out_.meaning.set(part, Value());
    Value offload = Value::Map{};
    for (const std::string_view part : {"params", "grads", "optimizer", "activations"})
      offload.set(part, "none");
    out_.meaning.set("offload", std::move(offload));
    if (context_.world_size && read_.hit("deepspeed") != nullptr)
      out_.meaning.set("num_processes", *context_.world_size);
    batch();
    precision();
    optimizer();
    scheduler();
    activations();
    run_part();
    best_model();
    fsdp();
    deepspeed();
  }

 private:
  const Hit* first(std::initializer_list<std::string_view> paths) const { return read_.hit(paths); }

  Value plain(std::initializer_list<std::string_view> paths, Value otherwise) const {
    const Hit* const hit = read_.hit(paths);
    return hit == nullptr ? otherwise : hit->value;
  }

  // A part that one key or its default says.
  void part(std::string_view name, std::initializer_list<std::string_view> paths, Value otherwise) {
    if (const Hit* const hit = read_.hit(paths)) {
      read_.mean(name, hit->value, *hit);
    } else {
      read_.mean(name, std::move(otherwise), kPeer);
    }
  }

  void batch() {
    part("batch.micro", {"per_device_train_batch_size", "per_gpu_train_batch_size"}, 8);
    part("grad_accum", {"gradient_accumulation_steps"}, 1);
    part("grad_clip", {"max_grad_norm"}, 1.0);
    Value group = out_.meaning.at("batch");
    group.set("global", Value());
    if (context_.world_size) {
      std::int64_t product = 0;
      const bool fits =
          !__builtin_mul_overflow(*group.at("micro").integer(),
                                  *out_.meaning.at("grad_accum").integer(), &product) &&
          !__builtin_mul_overflow(product, *context_.world_size, &product);
      if (fits) group.set("global", product);
    }
    out_.meaning.set("batch", std::move(group));
  }

  void precision() {
    const Hit* const brain = read_.hit("bf16");
    const Hit* const half = read_.hit("fp16");
    const bool brain_on = brain != nullptr && *brain->value.boolean();
    const bool half_on = half != nullptr && *half->value.boolean();
    if (brain_on && half_on) {
      const bool brain_first = brain->line <= half->line;
      const Hit& later = brain_first ? *half : *brain;
      const Hit& earlier = brain_first ? *brain : *half;
      read_.error(later, fmt::format("{} is true on line {} as well", earlier.path, earlier.line),
                  "keep one");
    } else if (brain_on) {
      read_.mean("mixed_precision", "bf16", *brain);
    } else if (half_on) {
      read_.mean("mixed_precision", "fp16", *half);
    } else if (const Hit* const off = brain != nullptr ? brain : half) {
      read_.mean("mixed_precision", "no", *off);
    } else {
      read_.mean("mixed_precision", "no", kPeer);
    }
  }

  // "adamw_torch_fused": adamw.
  std::string optimizer_type(const Hit& hit) {
    const std::string name = hit.value.text().value_or("");
    if (name == "adamw_hf") {
      read_.deprecate(hit, "the value adamw_hf was removed", "optim: adamw_torch");
      return "adamw";
    }
    for (const std::string_view known : {"adamw_torch", "adamw_torch_fused", "adamw_torch_xla"})
      if (name == known) return "adamw";
    return name;
  }

  void optimizer() {
    if (const Hit* const hit = read_.hit("optim")) {
      read_.mean("optimizer.type", optimizer_type(*hit), *hit);
    } else if (const Hit* const old = read_.hit("adafactor");
               old != nullptr && *old->value.boolean()) {
      read_.mean("optimizer.type", "adafactor", *old);
    } else {
      read_.mean("optimizer.type", "adamw", kPeer);
    }
    part("optimizer.lr", {"learning_rate"}, 5e-5);
    part("optimizer.weight_decay", {"weight_decay"}, 0.0);
    const Hit* const beta = first({"adam_beta1", "adam_beta2"});
    const Value betas = Value::List{plain({"adam_beta1"}, 0.9), plain({"adam_beta2"}, 0.999)};
    if (beta != nullptr) {
      read_.mean("optimizer.betas", betas, *beta);
    } else {
      read_.mean("optimizer.betas", betas, kPeer);
    }
    part("optimizer.eps", {"adam_epsilon"}, 1e-8);
    if (const Hit* const hit = read_.hit("optim_args"))
      read_.mean("optimizer.options", hit->value, *hit);
  }

  void scheduler() {
    const Hit* const type = read_.hit("lr_scheduler_type");
    if (type != nullptr) {
      const std::string name = *type->value.text();
      const std::string known = choice_of(kSchedules, name);
      if (known.empty())
        read_.error(*type, fmt::format("{} is no schedule", name),
                    nearest_choice(kSchedules, name));
      read_.mean("scheduler.type", known.empty() ? Value() : Value(known), *type);
    } else {
      read_.mean("scheduler.type", "linear", kPeer);
    }
    warmup();
    if (const Hit* const hit = read_.hit("lr_scheduler_kwargs"))
      read_.mean("scheduler.options", hit->value, *hit);
  }

  void warmup() {
    const Hit* const steps = read_.hit("warmup_steps");
    const Hit* const ratio = read_.hit("warmup_ratio");
    Value out = Value::Map{};
    if (steps != nullptr && (*steps->value.number() > 0 || ratio == nullptr)) {
      const double number = *steps->value.number();
      const bool share = number > 0 && number < 1;
      if (!share && number != std::floor(number))
        read_.error(*steps, "neither a whole number nor a share below 1",
                    fmt::format("{:.0f}", std::floor(number)));
      if (share) {
        out.set("ratio", number);
      } else {
        out.set("steps", static_cast<std::int64_t>(std::min(number, 9e18)));
      }
      read_.mean("scheduler.warmup", std::move(out), *steps);
    } else if (ratio != nullptr) {
      out.set("ratio", ratio->value);
      read_.mean("scheduler.warmup", std::move(out), *ratio);
    } else {
      out.set("steps", 0);
      read_.mean("scheduler.warmup", std::move(out), kPeer);
    }
  }

  void activations() {
    part("activation_checkpointing", {"activation_checkpointing", "gradient_checkpointing"}, false);
    const Hit* const options =
        first({"activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"});
    if (options != nullptr) read_.mean("activation_options", options->value, *options);
  }

  // --- length, saving, evaluation

  static bool is_on(const Value& strategy) { return strategy.is("steps"); }

  void run_part() {
    part("run.output_dir", {"output_dir"}, "trainer_output");
    part("run.epochs", {"num_train_epochs"}, 3.0);
    const Hit* const steps = read_.hit("max_steps");
    const bool limited = steps != nullptr && *steps->value.integer() > 0;
    if (limited) {
      read_.mean("run.max_steps", steps->value, *steps);
    } else {
      read_.mean("run.max_steps", Value(), kPeer);
    }
    part("run.seed", {"seed"}, 42);
    part("run.logging_steps", {"logging_steps"}, 500);
    Value save = Value::Map{};
    save.set("strategy", plain({"save_strategy"}, "steps"));
    save.set("steps", is_on(save.at("strategy")) ? plain({"save_steps"}, 500) : Value());
    save.set("keep", plain({"save_total_limit"}, Value()));
    Value eval = Value::Map{};
    eval.set("strategy", eval_strategy());
    eval.set("steps", is_on(eval.at("strategy"))
                          ? plain({"eval_steps"}, plain({"logging_steps"}, 500))
                          : Value());
    mean_with("run.save", std::move(save), {"save_steps", "save_strategy", "save_total_limit"});
    mean_with("run.eval", std::move(eval), {"eval_steps", "eval_strategy", "evaluation_strategy"});
  }

  Value eval_strategy() const {
    if (const Hit* const hit = first({"eval_strategy", "evaluation_strategy"})) return hit->value;
    const Hit* const old = read_.hit("evaluate_during_training");
    return old != nullptr && *old->value.boolean() ? "steps" : "no";
  }

  void mean_with(std::string_view name, Value value,
                 std::initializer_list<std::string_view> paths) {
    if (const Hit* const hit = read_.hit(paths)) {
      read_.mean(name, std::move(value), *hit);
    } else {
      read_.mean(name, std::move(value), kPeer);
    }
  }

  // The best model is chosen among evaluated checkpoints.
  void best_model() {
    const Hit* const best = read_.hit("load_best_model_at_end");
    if (best == nullptr || !*best->value.boolean()) return;
    read_.mean("extra.load_best_model_at_end", true, *best);
    const Value save = out_.meaning.at("run").at("save");
    const Value eval = out_.meaning.at("run").at("eval");
    if (save.at("strategy").is("best")) return;
    if (eval.at("strategy").is("no")) {
      read_.error(*best, "nothing is evaluated", "eval_strategy: steps");
      return;
    }
    if (save.at("strategy").json() != eval.at("strategy").json()) {
      read_.error(*best, "checkpoints and evaluations are not taken together",
                  fmt::format("save_strategy: {}", *eval.at("strategy").text()));
      return;
    }
    if (!is_on(save.at("strategy"))) return;
    const double every = save.at("steps").number().value_or(1);
    const double evaluated = eval.at("steps").number().value_or(1);
    if (evaluated > 0 && std::fmod(every, evaluated) != 0) {
      read_.error(*best,
                  fmt::format("save_steps {} is no multiple of eval_steps {}",
                              save.at("steps").json(), eval.at("steps").json()),
                  fmt::format("save_steps: {}", eval.at("steps").json()));
    } else if (read_.line("save_strategy") == 0 && read_.line("save_steps") == 0) {
      read_.warn("save_strategy", 0,
                 fmt::format("absent: steps, every {}, the same as the evaluation",
                             save.at("steps").json()),
                 "save_strategy: steps");
    }
  }

  // --- FSDP

  void fsdp() {
    const Hit* const hit = read_.hit("fsdp");
    if (hit == nullptr) {
      idle_fsdp();
      return;
    }
    if (const auto flag = hit->value.boolean()) {
      if (!*flag) return idle_fsdp();
      sharded("", *hit);
      return;
    }
    std::string words;
    if (const auto text = hit->value.text()) {
      words = *text;
    } else if (const auto* list = std::get_if<Value::List>(&hit->value.data)) {
      for (const Value& word : *list) words += word.text().value_or("?") + " ";
    }
    if (words.empty()) return idle_fsdp();
    read_.deprecate(*hit, "a list of words",
                    "fsdp: true, and fsdp_config.reshard_after_forward, fsdp_config.cpu_offload");
    sharded(words, *hit);
  }

  void idle_fsdp() {
    const Hit* const config = read_.hit("fsdp_config");
    if (config != nullptr && !std::get<Value::Map>(config->value.data).empty())
      read_.warn(config->path, config->line, "no effect without fsdp", "fsdp: true");
  }

  const Hit* key(std::string_view name) const {
    return read_.hit(fmt::format("fsdp_config.{}", name));
  }

  bool flag(std::string_view name, bool otherwise) const {
    const Hit* const hit = key(name);
    return hit == nullptr ? otherwise : hit->value.boolean().value_or(otherwise);
  }

  void sharded(std::string_view words, const Hit& origin) {
    constexpr std::string_view kWords =
        "full_shard|shard_grad_op|no_shard|hybrid_shard|hybrid_shard_zero2|auto_wrap|offload";
    std::string strategy = "full_shard";
    bool offload = flag("cpu_offload", false);
    bool wraps = words.empty();
    for (const Value& value : split_words(words, " ,")) {
      const std::string word = choice_of(kWords, *value.text());
      if (word.empty()) {
        read_.error(origin, fmt::format("{} is not an option of fsdp", *value.text()),
                    nearest_choice(kWords, *value.text()));
      } else if (word == "offload") {
        offload = true;
      } else if (word == "auto_wrap") {
        wraps = true;
      } else {
        strategy = word;
      }
    }
    apply_strategy(strategy, origin);
    Value group = out_.meaning.at("offload");
    if (offload)
      for (const std::string_view part : {"params", "grads", "optimizer"}) group.set(part, "cpu");
    const Hit* const cpu = key("cpu_offload");
    read_.mean("offload", std::move(group), cpu != nullptr ? *cpu : origin);
    units(wraps, origin);
    loading_and_state();
    old_keys();
  }

  void apply_strategy(const std::string& strategy, const Hit& origin) {
    const Hit* const reshard = key("reshard_after_forward");
    bool again = !strategy.ends_with("grad_op") && !strategy.ends_with("zero2");
    const Hit* from = &origin;
    if (reshard != nullptr) {
      const std::string word = *reshard->value.text();
      const std::string yes = choice_of("true|false|full_shard|shard_grad_op", word);
      if (yes.empty()) {
        read_.error(*reshard, "neither true nor false", nearest_choice("true|false", word));
      } else {
        again = yes == "true" || yes == "full_shard";
        from = reshard;
      }
    }
    const std::string_view name = strategy.starts_with("hybrid") ? "hsdp"
                                  : strategy == "no_shard"       ? "ddp"
                                  : again                        ? "zero3"
                                                                 : "zero2";
    read_.mean("strategy", std::string(name), *from);
    out_.meaning.set("reshard_after_forward", again);
  }

  void units(bool wraps, const Hit& origin) {
    const Hit* const classes = read_.hit(
        {"fsdp_config.transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap"});
    const Hit* const size = read_.hit({"fsdp_config.min_num_params", "fsdp_min_num_params"});
    const Hit* const policy = key("auto_wrap_policy");
    if (policy != nullptr && policy->value.is("NO_WRAP")) {
      read_.mean("units", "root", *policy);
    } else if (classes != nullptr) {
      read_.mean(
          "units",
          classes->value.text() ? Value(split_words(*classes->value.text())) : classes->value,
          *classes);
    } else if (size != nullptr && *size->value.integer() > 0) {
      Value out = Value::Map{};
      out.set("min_params", size->value);
      read_.mean("units", std::move(out), *size);
    } else {
      read_.mean("units", wraps ? "model" : "root", policy != nullptr ? *policy : origin);
    }
  }

  void loading_and_state() {
    part("efficient_loading", {"fsdp_config.cpu_ram_efficient_loading"}, false);
    if (const Hit* const hit = key("activation_checkpointing"))
      read_.mean("activation_checkpointing", hit->value, *hit);
    const Hit* const state = key("state_dict_type");
    if (state == nullptr) {
      read_.mean("state_dict_type", "full", kPeer);
    } else {
      const bool full = state->value.is("FULL_STATE_DICT");
      const bool local = state->value.is("LOCAL_STATE_DICT");
      read_.mean("state_dict_type", full ? "full" : local ? "local" : "sharded", *state);
    }
  }

  void old_keys() {
    const Hit* const version = key("version");
    if (version != nullptr && *version->value.integer() == 1) return;
    for (const std::string_view name : {"backward_prefetch", "limit_all_gathers", "use_orig_params",
                                        "sync_module_states", "forward_prefetch"})
      if (const Hit* const hit = key(name)) read_.deprecate(*hit, "no effect in version 2", "");
  }

  // --- DeepSpeed

  void deepspeed() {
    const Hit* const hit = read_.hit("deepspeed");
    if (hit == nullptr) return;
    if (!hit->value.text()) {
      read_.error(*hit, "a group is not read here", "the path of a DeepSpeed file");
      return;
    }
    ForeignContext context = context_;
    Value arguments = Value::Map{};
    for (const auto& [path, found] : read_.hits()) arguments.set(path, found.value);
    defaults(arguments);
    context.training_args = std::move(arguments);
    if (!context.total_steps)
      context.total_steps = out_.meaning.at("run").at("max_steps").integer();
    const auto named = read_named(*hit, file_, context, read_);
    if (named) take_over(*named);
  }

  static void defaults(Value& arguments) {
    const std::pair<std::string_view, Value> kDefaults[] = {{"per_device_train_batch_size", 8},
                                                            {"gradient_accumulation_steps", 1},
                                                            {"learning_rate", 5e-5},
                                                            {"max_grad_norm", 1.0},
                                                            {"weight_decay", 0.0},
                                                            {"warmup_steps", 0},
                                                            {"bf16", false},
                                                            {"fp16", false}};
    for (const auto& [name, value] : kDefaults)
      if (arguments.at(name).null()) arguments.set(name, value);
  }

  void take_over(const Foreign& named) {
    for (const ForeignFinding& finding : named.findings) out_.findings.push_back(finding);
    for (const std::string_view part :
         {"strategy", "offload", "nvme_path", "save_16bit", "zero", "loss_scale"}) {
      const Value& value = named.meaning.at(part);
      if (!value.null()) out_.meaning.set(part, value);
    }
    for (const std::string_view part : {"strategy", "offload.params", "offload.optimizer"}) {
      const auto origin = named.origins.find(std::string(part));
      if (origin != named.origins.end()) out_.origins[std::string(part)] = origin->second;
    }
    take_over_algorithm(named, "optimizer", {"lr", "learning_rate"}, read_.hit("optim"));
    take_over_algorithm(named, "scheduler", {"warmup_num_steps", "warmup_steps"},
                        read_.hit("lr_scheduler_type"));
  }

  void take_over_algorithm(const Foreign& named, std::string_view group,
                           std::pair<std::string_view, std::string_view> filled, const Hit* own) {
    const Value& value = named.meaning.at(group);
    if (value.null()) return;
    out_.meaning.set(group, value);
    const std::string type = fmt::format("{}.type", group);
    out_.origins[type] = named.origins.at(type);
    const Hit* const source = read_.hit(filled.second);
    const auto origin = named.origins.find(fmt::format("{}.{}", group, filled.first));
    if (origin != named.origins.end())
      out_.origins[origin->first] =
          source != nullptr && origin->second.filled ? read_.origin_of(*source) : origin->second;
    if (own == nullptr) return;
    read_.warn(own->path, own->line,
               fmt::format("the DeepSpeed file has {} of its own, {}: {} is not used",
                           group == "optimizer" ? "an optimizer" : "a scheduler",
                           value.at("type").text().value_or("?"), own->value.json()),
               "remove one of the two");
  }

  Reading& read_;
  std::filesystem::path file_;
  const ForeignContext& context_;
  Foreign& out_;
};

}  // namespace

void interpret_training(const Document& document, const std::filesystem::path& file,
                        const ForeignContext& context, Foreign& out) {
  constexpr Prefix kPrefixes[] = {{"fsdp_config", "fsdp_", false}};
  Reading reading(document, training_keys(), kPrefixes, out);
  if (reading.unreadable()) return;
  Training(reading, file, context, out).run();
  reading.finish();
}

}  // namespace trireme::config::foreign
