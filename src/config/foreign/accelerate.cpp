// What the keys of an Accelerate file mean together.
#include "reading.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme::config::foreign {

namespace {

constexpr std::string_view kPeer = "accelerate 1.15.0";

constexpr std::array<std::string_view, 5> kStrategies{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                                      "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
constexpr std::string_view kStrategyNames =
    "FULL_SHARD|SHARD_GRAD_OP|NO_SHARD|HYBRID_SHARD|HYBRID_SHARD_ZERO2";

// The sections that only one distributed type reads.
struct Owned {
  std::string_view section;
  std::string_view type;
};
constexpr Owned kOwned[] = {{"fsdp_config", "FSDP"},
                            {"deepspeed_config", "DEEPSPEED"},
                            {"megatron_lm_config", "MEGATRON_LM"}};

// What may not stand beside deepspeed_config_file, and where it belongs.
struct Forbidden {
  std::string_view path;
  std::string_view instead;
};
constexpr Forbidden kForbidden[] = {
    {"deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"deepspeed_config.gradient_clipping", "gradient_clipping"},
    {"deepspeed_config.zero_stage", "zero_optimization.stage"},
    {"deepspeed_config.offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"deepspeed_config.offload_param_device", "zero_optimization.offload_param.device"},
    {"deepspeed_config.offload_optimizer_nvme_path",
     "zero_optimization.offload_optimizer.nvme_path"},
    {"deepspeed_config.offload_param_nvme_path", "zero_optimization.offload_param.nvme_path"},
    {"deepspeed_config.zero3_save_16bit_model",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"mixed_precision", "bf16.enabled or fp16.enabled"},
};

class Accelerate {
 public:
  Accelerate(Reading& reading, std::filesystem::path file, Foreign& out)
      : read_(reading), file_(std::move(file)), out_(out) {}

  void run() {
    for (const std::string_view part :
         {"strategy", "mesh", "num_processes", "num_machines", "mixed_precision", "grad_accum",
          "grad_clip", "nvme_path", "activation_checkpointing", "reshard_after_forward", "units",
          "state_dict_type", "optimizer", "scheduler"})
      out_.meaning.set(part, Value());
    for (const std::string_view part : {"params", "grads", "optimizer", "activations"})
      offload(part, "none");
    machines();
    precision();
    strategy();
    idle_sections();
    extras();
  }

 private:
  std::string type() const {
    const Hit* const hit = read_.hit("distributed_type");
    return hit == nullptr ? "" : hit->value.text().value_or("");
  }

  void offload(std::string_view part, std::string_view where) {
    Value group = out_.meaning.at("offload");
    group.set(part, std::string(where));
    out_.meaning.set("offload", std::move(group));
  }

  void extra(std::string_view name, Value value, const Hit& hit) {
    read_.mean(fmt::format("extra.{}", name), std::move(value), hit);
  }

  std::optional<std::int64_t> whole(std::string_view path) const {
    const Hit* const hit = read_.hit(path);
    return hit == nullptr ? std::nullopt : hit->value.integer();
  }

  bool on(std::string_view path, bool otherwise) const {
    const Hit* const hit = read_.hit(path);
    return hit == nullptr ? otherwise : hit->value.boolean().value_or(otherwise);
  }

  void machines() {
    const std::int64_t machines = whole("num_machines").value_or(1);
    if (const Hit* const hit = read_.hit("num_machines")) {
      read_.mean("num_machines", hit->value, *hit);
    } else if (read_.line("num_machines") == 0) {
      read_.mean("num_machines", 1, kPeer);
    }
    const Hit* const hit = read_.hit("num_processes");
    if (hit == nullptr || *hit->value.integer() == -1) return;
    const std::int64_t processes = *hit->value.integer();
    if (processes < 1) {
      read_.error(*hit, "must be at least 1, or -1 for a number given at the start", "1");
      return;
    }
    read_.mean("num_processes", processes, *hit);
    if (processes % machines != 0) {
      const std::int64_t lower = processes / machines * machines;
      read_.error(*hit,
                  fmt::format("{} processes do not divide over {} machines", processes, machines),
                  lower > 0 ? fmt::format("{} or {}", lower, lower + machines)
                            : fmt::format("{}", machines));
    }
    if (const Hit* const rank = read_.hit("machine_rank"))
      if (*rank->value.integer() >= machines)
        read_.error(*rank, fmt::format("there are {} machines, counted from 0", machines), "0");
  }

  void precision() {
    if (const Hit* const hit = read_.hit("mixed_precision")) {
      read_.mean("mixed_precision", hit->value, *hit);
      if (const Hit* const old = read_.hit("fp16"))
        read_.error(*old, "mixed_precision says it as well", "keep mixed_precision");
    } else if (const Hit* const old = read_.hit("fp16")) {
      read_.mean("mixed_precision", *old->value.boolean() ? "fp16" : "no", *old);
    } else if (read_.line("mixed_precision") == 0 &&
               read_.hit("deepspeed_config.deepspeed_config_file") == nullptr) {
      read_.mean("mixed_precision", "no", kPeer);
    }
  }

  void strategy() {
    const Hit* const hit = read_.hit("distributed_type");
    if (hit == nullptr) {
      missing_type();
      return;
    }
    const std::string name = type();
    if (name == "NO") {
      one_process(*hit);
    } else if (name == "XLA" || name == "MEGATRON_LM") {
      read_.mean("strategy", "unsupported", *hit);
      if (name == "MEGATRON_LM") megatron();
    } else if (name == "FSDP") {
      fsdp();
    } else if (name == "DEEPSPEED") {
      deepspeed();
    } else {
      read_.mean("strategy", "ddp", *hit);
    }
    mesh();
    sagemaker();
  }

  void missing_type() {
    if (read_.line("distributed_type") == 0) {
      read_.error("distributed_type", 0, "missing",
                  "one of NO, MULTI_CPU, MULTI_GPU, DEEPSPEED, FSDP");
      return;
    }
    // Words that people write for it, which no spelling leads to.
    constexpr std::pair<std::string_view, std::string_view> kMeant[] = {
        {"cuda", "MULTI_GPU"},
        {"gpu", "MULTI_GPU"},
        {"ddp", "MULTI_GPU"},
        {"cpu", "MULTI_CPU"},
        {"tpu", "XLA"},
        {"zero", "DEEPSPEED"},
        {"nccl", "MULTI_GPU"},
        {"single", "NO"},
        {"none", "NO"},
        {"fsdp2", "FSDP"},
        {"megatron", "MEGATRON_LM"}};
    for (ForeignFinding& finding : out_.findings) {
      if (finding.path != "distributed_type") continue;
      const std::string word = finding.why.substr(0, finding.why.find(' '));
      for (const auto& [written, meant] : kMeant)
        if (word.starts_with(written)) finding.suggest = meant;
    }
  }

  void one_process(const Hit& hit) {
    read_.mean("strategy", "none", hit);
    const Hit* const processes = read_.hit("num_processes");
    if (processes != nullptr && *processes->value.integer() > 1) {
      read_.error(
          *processes,
          fmt::format("distributed_type: NO is one process, not {}", *processes->value.integer()),
          "1, or distributed_type: MULTI_GPU or MULTI_CPU");
    }
  }

  void sagemaker() {
    const Hit* const hit = read_.hit("compute_environment");
    if (hit == nullptr || !hit->value.is("AMAZON_SAGEMAKER")) return;
    read_.mean("strategy", "unsupported", *hit);
  }

  // --- FSDP

  bool second() const { return whole("fsdp_config.fsdp_version").value_or(1) == 2; }

  void fsdp() {
    if (second()) {
      fsdp_second();
    } else {
      fsdp_first();
    }
    units();
    switch_of("activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing", false);
    switch_of("efficient_loading", "fsdp_config.fsdp_cpu_ram_efficient_loading", true);
    if (on("fsdp_config.fsdp_activation_checkpointing_offload", false))
      offload("activations", "cpu");
    if (const Hit* const hit = read_.hit("fsdp_config.fsdp_offload_params")) {
      if (*hit->value.boolean())
        for (const std::string_view part : {"params", "grads", "optimizer"}) offload(part, "cpu");
      out_.origins["offload"] = read_.origin_of(*hit);
    } else {
      out_.origins["offload"] = {out_.file, {}, 0, std::string(kPeer), std::nullopt};
    }
    state_dict();
  }

  void switch_of(std::string_view name, std::string_view path, bool otherwise) {
    if (const Hit* const hit = read_.hit(path)) {
      read_.mean(name, hit->value, *hit);
    } else if (read_.line(path) == 0) {
      read_.mean(name, otherwise, kPeer);
    }
  }

  void state_dict() {
    const Hit* const hit = read_.hit("fsdp_config.fsdp_state_dict_type");
    if (hit == nullptr) {
      if (read_.line("fsdp_config.fsdp_state_dict_type") == 0)
        read_.mean("state_dict_type", second() ? "sharded" : "full", kPeer);
      return;
    }
    if (second() && hit->value.is("LOCAL_STATE_DICT")) {
      read_.error(*hit, "not in version 2", "SHARDED_STATE_DICT");
      return;
    }
    const bool full = hit->value.is("FULL_STATE_DICT");
    const bool local = hit->value.is("LOCAL_STATE_DICT");
    read_.mean("state_dict_type", full ? "full" : local ? "local" : "sharded", *hit);
  }

  // The first version's name that a value stands for, empty when none.
  std::string strategy_name(const Hit& hit) {
    const std::string word = *hit.value.text();
    if (word.size() == 1 && word[0] >= '1' && word[0] <= '5')
      return std::string(kStrategies.at(static_cast<std::size_t>(word[0] - '1')));
    std::string name = choice_of(kStrategyNames, word);
    if (name.empty())
      read_.error(hit, fmt::format("{} is no sharding strategy", word),
                  nearest_choice(kStrategyNames, word));
    return name;
  }

  void fsdp_first() {
    Value prefetch = Value::Map{};
    const Hit* const backward = read_.hit(
        {"fsdp_config.fsdp_backward_prefetch", "fsdp_config.fsdp_backward_prefetch_policy"});
    const bool pre = backward != nullptr && backward->value.is("BACKWARD_PRE");
    const bool post = backward != nullptr && backward->value.is("BACKWARD_POST");
    prefetch.set("backward", pre ? "pre" : post ? "post" : "none");
    prefetch.set("forward", on("fsdp_config.fsdp_forward_prefetch", false));
    out_.meaning.set("prefetch", std::move(prefetch));
    out_.origins["prefetch.backward"] =
        backward != nullptr ? read_.origin_of(*backward)
                            : Origin{out_.file, {}, 0, std::string(kPeer), std::nullopt};
    std::string name = "FULL_SHARD";
    const Hit* origin = read_.hit("fsdp_config.fsdp_sharding_strategy");
    const Hit* const reshard = read_.hit("fsdp_config.fsdp_reshard_after_forward");
    if (origin != nullptr) {
      name = strategy_name(*origin);
      if (reshard != nullptr && strategy_of_reshard(*reshard) != name)
        read_.error(*reshard, fmt::format("fsdp_sharding_strategy says {}", name), "keep one");
    } else if (reshard != nullptr) {
      origin = reshard;
      name = strategy_of_reshard(*reshard);
    }
    if (name.empty()) return;
    const bool hybrid = name.starts_with("HYBRID");
    const bool keeps = name == "SHARD_GRAD_OP" || name == "HYBRID_SHARD_ZERO2";
    const std::string_view strategy = hybrid               ? "hsdp"
                                      : name == "NO_SHARD" ? "ddp"
                                      : keeps              ? "zero2"
                                                           : "zero3";
    set_strategy(strategy, origin);
    if (name != "NO_SHARD") out_.meaning.set("reshard_after_forward", !keeps);
    if (hybrid) {
      const auto processes = whole("num_processes");
      const std::int64_t machines = whole("num_machines").value_or(1);
      if (processes && *processes > 0 && *processes % machines == 0)
        set_mesh({{"replicate", machines}, {"shard", *processes / machines}});
    }
  }

  // In version 1 the key takes the names of strategies; true and false are version 2's.
  std::string strategy_of_reshard(const Hit& hit) {
    const std::string word = *hit.value.text();
    const std::string flag = choice_of("true|false", word);
    if (flag.empty()) return strategy_name(hit);
    const std::string name = flag == "true" ? "FULL_SHARD" : "SHARD_GRAD_OP";
    const auto same = [&](const ForeignFinding& f) {
      return f.path == hit.path && f.severity == Severity::kDeprecated;
    };
    if (std::ranges::none_of(out_.findings, same))
      read_.deprecate(hit, "true and false are of version 2",
                      fmt::format("fsdp_sharding_strategy: {}, or fsdp_version: 2", name));
    return name;
  }

  void set_strategy(std::string_view strategy, const Hit* origin) {
    if (origin != nullptr) {
      read_.mean("strategy", std::string(strategy), *origin);
    } else {
      read_.mean("strategy", std::string(strategy), kPeer);
    }
  }

  void set_mesh(std::initializer_list<std::pair<std::string_view, std::int64_t>> sizes) {
    Value mesh = Value::Map{};
    for (const auto& [name, size] : sizes) mesh.set(name, size);
    out_.meaning.set("mesh", std::move(mesh));
  }

  void fsdp_second() {
    constexpr std::string_view kNone = "no effect when fsdp_version is 2";
    for (const std::string_view key :
         {"fsdp_sharding_strategy", "fsdp_use_orig_params", "fsdp_sync_module_states",
          "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy"}) {
      const Hit* const hit = read_.hit(fmt::format("fsdp_config.{}", key));
      if (hit != nullptr)
        read_.deprecate(*hit, std::string(kNone),
                        key == "fsdp_sharding_strategy" ? "fsdp_reshard_after_forward" : "");
    }
    if (const Hit* const hit = read_.hit("fsdp_config.fsdp_forward_prefetch")) {
      if (*hit->value.boolean()) {
        read_.error(*hit, "not in version 2", "fsdp_forward_prefetch: false");
      } else {
        read_.deprecate(*hit, std::string(kNone), "");
      }
    }
    const Hit* const reshard = read_.hit("fsdp_config.fsdp_reshard_after_forward");
    bool again = true;
    if (reshard != nullptr) {
      const std::string word = *reshard->value.text();
      const std::string flag = choice_of("true|false", word);
      const std::string old = choice_of(kStrategyNames, word);
      if (flag.empty() && old.empty()) {
        read_.error(*reshard, "neither true nor false", nearest_choice("true|false", word));
        return;
      }
      again = flag.empty() ? old == "FULL_SHARD" || old == "HYBRID_SHARD" : flag == "true";
      if (flag.empty())
        read_.deprecate(*reshard, "a name of version 1",
                        fmt::format("fsdp_reshard_after_forward: {}", again));
    }
    out_.meaning.set("reshard_after_forward", again);
    set_strategy(again ? "zero3" : "zero2", reshard);
  }

  void units() {
    const Hit* const policy = read_.hit("fsdp_config.fsdp_auto_wrap_policy");
    const Hit* const classes = read_.hit("fsdp_config.fsdp_transformer_layer_cls_to_wrap");
    const Hit* const size = read_.hit("fsdp_config.fsdp_min_num_params");
    if (policy == nullptr) {
      if (read_.line("fsdp_config.fsdp_auto_wrap_policy") == 0) read_.mean("units", "root", kPeer);
    } else if (policy->value.is("TRANSFORMER_BASED_WRAP")) {
      read_.mean("units", classes != nullptr ? classes->value : Value("model"),
                 classes != nullptr ? *classes : *policy);
    } else if (policy->value.is("SIZE_BASED_WRAP")) {
      Value units = Value::Map{};
      units.set("min_params", size != nullptr ? size->value : Value(100000000));
      read_.mean("units", std::move(units), size != nullptr ? *size : *policy);
    } else {
      read_.mean("units", "root", *policy);
    }
    if (policy == nullptr && read_.line("fsdp_config.fsdp_auto_wrap_policy") != 0) return;
    const Value& chosen = out_.meaning.at("units");
    if (classes != nullptr && !std::holds_alternative<Value::List>(chosen.data))
      read_.warn(classes->path, classes->line, "no effect with this fsdp_auto_wrap_policy",
                 "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP");
    if (size != nullptr && chosen.at("min_params").null())
      read_.warn(size->path, size->line, "no effect with this fsdp_auto_wrap_policy",
                 "fsdp_auto_wrap_policy: SIZE_BASED_WRAP");
  }

  // --- several axes

  void mesh() {
    const int line = read_.line("parallelism_config");
    if (line == 0 || read_.hit("parallelism_config") == nullptr) return;
    const Hit* const section = read_.hit("parallelism_config");
    if (std::get<Value::Map>(section->value.data).empty()) return;
    const auto size = [&](std::string_view axis) {
      return whole(fmt::format("parallelism_config.parallelism_config_{}_size", axis)).value_or(1);
    };
    const std::int64_t replicate = size("dp_replicate");
    const std::int64_t shard = size("dp_shard");
    if (type() == "FSDP" && !second())
      read_.error(*section, "needs the second version of FSDP", "fsdp_version: 2");
    axes(*section, replicate, shard, size("tp"), size("cp"), size("sp"));
  }

  void axes(const Hit& section, std::int64_t replicate, std::int64_t shard, std::int64_t tensor,
            std::int64_t context, std::int64_t sequence) {
    if (tensor * context * sequence > 1) {
      const std::string_view axis = tensor > 1 ? "tp" : context > 1 ? "cp" : "sp";
      set_mesh({{"replicate", replicate},
                {"shard", shard},
                {"tensor", tensor},
                {"context", context},
                {"sequence", sequence}});
      read_.mean("strategy", "unsupported",
                 *read_.hit(fmt::format("parallelism_config.parallelism_config_{}_size", axis)));
    } else if (replicate > 1 && type() == "FSDP") {
      const Hit& origin = *read_.hit("parallelism_config.parallelism_config_dp_replicate_size");
      read_.mean("strategy", shard > 1 ? "hsdp" : "ddp", origin);
      if (shard > 1) set_mesh({{"replicate", replicate}, {"shard", shard}});
    }
    const auto processes = whole("num_processes");
    const std::int64_t rest = replicate * tensor * context * sequence;
    if (!processes || *processes < 1 || rest * shard == *processes) return;
    read_.error(section,
                fmt::format("{} x {} x {} = {} is not num_processes = {}", replicate, shard,
                            tensor * context * sequence, rest * shard, *processes),
                *processes % rest == 0
                    ? fmt::format("parallelism_config_dp_shard_size: {}", *processes / rest)
                    : fmt::format("num_processes: {}", rest * shard));
  }

  void megatron() {
    const auto degree = [&](std::string_view key) {
      return whole(fmt::format("megatron_lm_config.megatron_lm_{}", key)).value_or(1);
    };
    const std::int64_t tensor = degree("tp_degree");
    const std::int64_t pipeline = degree("pp_degree");
    const std::int64_t model = tensor * pipeline * degree("context_parallel_size");
    const auto processes = whole("num_processes");
    if (processes && *processes > 0 && *processes % model == 0) {
      set_mesh({{"replicate", *processes / model},
                {"shard", 1},
                {"tensor", tensor},
                {"pipeline", pipeline}});
    }
    if (const Hit* const clip = read_.hit("megatron_lm_config.megatron_lm_gradient_clipping")) {
      read_.mean("grad_clip", clip->value, *clip);
    } else {
      read_.mean("grad_clip", 1.0, kPeer);
    }
  }

  // --- DeepSpeed

  void deepspeed() {
    if (const Hit* const file = read_.hit("deepspeed_config.deepspeed_config_file")) {
      deepspeed_file(*file);
    } else {
      deepspeed_inline();
    }
  }

  void deepspeed_inline() {
    const Hit* const stage = read_.hit("deepspeed_config.zero_stage");
    if (stage == nullptr && read_.line("deepspeed_config.zero_stage") != 0) return;
    const std::int64_t number = stage == nullptr ? 2 : *stage->value.integer();
    set_strategy(number == 0 ? "ddp" : fmt::format("zero{}", number), stage);
    offloaded("params", "param", number == 3, "parameters are offloaded only at stage 3",
              "zero_stage: 3, or offload_param_device: none");
    offloaded("optimizer", "optimizer", number > 0, "nothing is sharded at stage 0",
              "zero_stage: 1 or more, or offload_optimizer_device: none");
    if (!out_.meaning.at("offload").at("optimizer").is("none")) offload("grads", "cpu");
    stage_three(number);
    steps_and_clip();
  }

  void offloaded(std::string_view part, std::string_view key, bool possible, std::string_view why,
                 std::string_view suggest) {
    const Hit* const hit = read_.hit(fmt::format("deepspeed_config.offload_{}_device", key));
    const Hit* const folder = read_.hit(fmt::format("deepspeed_config.offload_{}_nvme_path", key));
    if (hit == nullptr) return;
    out_.origins[fmt::format("offload.{}", part)] = read_.origin_of(*hit);
    if (!hit->value.is("none") && !possible) {
      read_.error(*hit, std::string(why), std::string(suggest));
      return;
    }
    offload(part, *hit->value.text());
    if (!hit->value.is("nvme")) return;
    if (folder == nullptr) {
      read_.error(*hit, "nvme needs a folder", fmt::format("offload_{}_nvme_path: FOLDER", key));
    } else {
      read_.mean("nvme_path", folder->value, *folder);
    }
  }

  void stage_three(std::int64_t stage) {
    const Hit* const init = read_.hit("deepspeed_config.zero3_init_flag");
    if (init != nullptr && *init->value.boolean() && stage != 3)
      read_.error(*init, "only at stage 3", "zero3_init_flag: false");
    const Hit* const save = read_.hit("deepspeed_config.zero3_save_16bit_model");
    if (save != nullptr) {
      read_.mean("save_16bit", save->value, *save);
      if (*save->value.boolean() && stage != 3)
        read_.warn(save->path, save->line, "only at stage 3", "zero3_save_16bit_model: false");
    } else {
      read_.mean("save_16bit", false, kPeer);
    }
  }

  void steps_and_clip() {
    if (const Hit* const hit = read_.hit("deepspeed_config.gradient_accumulation_steps")) {
      read_.mean("grad_accum", hit->value, *hit);
    } else {
      read_.mean("grad_accum", 1, kPeer);
    }
    if (const Hit* const hit = read_.hit("deepspeed_config.gradient_clipping")) {
      read_.mean("grad_clip", hit->value, *hit);
    } else if (read_.line("deepspeed_config.gradient_clipping") == 0) {
      read_.mean("grad_clip", 1.0, kPeer);
      read_.warn("deepspeed_config", read_.line("deepspeed_config"),
                 "no gradient_clipping: accelerate fills in 1.0 under DEEPSPEED and nothing under "
                 "FSDP or MULTI_GPU",
                 "gradient_clipping: 1.0");
    }
  }

  void deepspeed_file(const Hit& file) {
    bool clash = false;
    for (const Forbidden& key : kForbidden) {
      const Hit* const hit = read_.hit(key.path);
      if (hit == nullptr) continue;
      clash = true;
      read_.error(*hit, "may not stand beside deepspeed_config_file",
                  fmt::format("set {} in the JSON file", key.instead));
    }
    if (clash) {
      if (const Hit* const clip = read_.hit("deepspeed_config.gradient_clipping"))
        read_.mean("grad_clip", clip->value, *clip);
      read_.mean("save_16bit", false, kPeer);
      return;
    }
    ForeignContext context;
    context.world_size = whole("num_processes");
    auto named = read_named(file, file_, context, read_);
    if (!named) return;
    extra("with", file.value, file);
    for (ForeignFinding& finding : named->findings) {
      if (finding.severity != Severity::kWarning) out_.findings.push_back(std::move(finding));
    }
    take_over(*named, file);
  }

  void take_over(const Foreign& named, const Hit& file) {
    for (const std::string_view part :
         {"strategy", "offload", "nvme_path", "save_16bit", "optimizer", "scheduler", "batch",
          "zero", "loss_scale", "activation_options", "grad_accum"}) {
      const Value& value = named.meaning.at(part);
      if (!value.null() && !value.is("auto")) out_.meaning.set(part, value);
    }
    for (const auto& [part, origin] : named.origins)
      if (part != "num_processes" && origin.standard.empty()) out_.origins[part] = origin;
    take_over_precision(named, file);
    const Value& clip = named.meaning.at("grad_clip");
    const auto origin = named.origins.find("grad_clip");
    out_.meaning.set("grad_clip", clip.is("auto") ? Value(1.0) : clip);
    if (origin != named.origins.end()) out_.origins["grad_clip"] = origin->second;
    if (!clip.is("auto")) return;
    out_.origins["grad_clip"].filled = kPeer;
    read_.warn(file.path, file.line, "gradient_clipping is \"auto\": 1.0 is filled in",
               "gradient_clipping: 1.0 in the JSON file");
  }

  void take_over_precision(const Foreign& named, const Hit& file) {
    const Value& precision = named.meaning.at("mixed_precision");
    const auto origin = named.origins.find("mixed_precision");
    if (!precision.is("auto")) {
      out_.meaning.set("mixed_precision", precision);
      if (origin != named.origins.end()) out_.origins["mixed_precision"] = origin->second;
      return;
    }
    out_.meaning.set("mixed_precision", "no");
    out_.origins["mixed_precision"] = origin->second;
    read_.warn(file.path, file.line,
               fmt::format("{} is \"auto\" in the JSON file and neither file may fill it "
                           "(mixed_precision is forbidden next to deepspeed_config_file): full "
                           "precision unless the program says otherwise",
                           origin->second.key),
               "true or false in the JSON file");
  }

  // --- the rest

  void idle_sections() {
    for (const Owned& owned : kOwned) {
      const Hit* const hit = read_.hit(owned.section);
      if (hit == nullptr || type() == owned.type || type().empty()) continue;
      if (std::get<Value::Map>(hit->value.data).empty()) continue;
      read_.warn(hit->path, hit->line, fmt::format("no effect with distributed_type: {}", type()),
                 fmt::format("distributed_type: {}, or remove the section", owned.type));
    }
  }

  void extras() {
    if (const Hit* const hit = read_.hit("use_cpu"))
      if (*hit->value.boolean()) extra("device", "cpu", *hit);
    if (const Hit* const hit = read_.hit("mpirun_config.mpirun_hostfile"))
      extra("mpirun_hostfile", hit->value, *hit);
    if (const Hit* const hit = read_.hit("deepspeed_config.deepspeed_hostfile"))
      extra("hostfile", hit->value, *hit);
    if (const Hit* const hit = read_.hit("deepspeed_config.deepspeed_multinode_launcher"))
      extra("launcher", hit->value, *hit);
    if (const Hit* const hit = read_.hit("deepspeed_config.deepspeed_moe_layer_cls_names"))
      read_.mean("leaf_units", hit->value, *hit);
    fp8();
  }

  void fp8() {
    const Hit* const section = read_.hit("fp8_config");
    if (section == nullptr) return;
    Value out = Value::Map{};
    for (const auto& [key, hit] : read_.below("fp8_config")) {
      const std::string name = key.substr(std::string_view("fp8_").size());
      out.set(name, name == "override_linear_precision" ? three_flags(*hit) : hit->value);
    }
    if (std::get<Value::Map>(out.data).empty()) return;
    extra("fp8", std::move(out), *section);
  }

  // "(false, false, false)", or a list.
  Value three_flags(const Hit& hit) {
    if (!hit.value.text()) return hit.value;
    Value::List flags;
    for (const Value& word : split_words(*hit.value.text(), ",()[]")) {
      const std::string flag = choice_of("true|false", *word.text());
      if (flag.empty()) {
        read_.error(hit, "three booleans are expected", "[false, false, false]");
        return {};
      }
      flags.emplace_back(flag == "true");
    }
    return flags;
  }

  Reading& read_;
  std::filesystem::path file_;
  Foreign& out_;
};

}  // namespace

void interpret_accelerate(const Document& document, const std::filesystem::path& file,
                          Foreign& out) {
  constexpr Prefix kPrefixes[] = {{"fsdp_config", "fsdp_"}, {"fp8_config", "fp8_"}};
  Reading reading(document, accelerate_keys(), kPrefixes, out);
  if (reading.unreadable()) return;
  Accelerate(reading, file, out).run();
  reading.finish();
}

}  // namespace trireme::config::foreign
