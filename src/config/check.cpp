#include "check.hpp"

#include "trireme/base/error.hpp"
#include "trireme/config/fields.hpp"

#include "values.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace trireme::config {

namespace detail {

namespace {

// One way in which settings do not go together: the settings involved, the one to blame first, and
// the test, which returns the problem or an empty text. Values are within their ranges when a rule
// runs.
struct Rule {
  std::vector<std::string_view> paths;
  std::string (*problem)(const Config&);
};

std::int64_t horizon(const Config& c) {
  return c.schedule.total_steps > 0 ? c.schedule.total_steps : c.train.max_steps;
}

const Config& defaults() {
  static const Config config;
  return config;
}

// A plug-in has its own sizes.
std::string plugin_problem(const Config& c) {
  if (c.model.plugin.empty())
    return c.model.args.empty() ? "" : "model.args has no effect without model.plugin; remove it";
  Model sizes = c.model;
  sizes.plugin.clear();
  sizes.args.clear();
  sizes.frozen.clear();
  sizes.vocab = 0;
  if (sizes == defaults().model) return {};
  return "sizes and model.type have no effect with model.plugin; remove them, or give them to the "
         "plug-in by model.args";
}

std::string plugin_recompute_problem(const Config& c) {
  if (c.model.plugin.empty() || c.train.recompute == "none") return {};
  return "has no effect on a plug-in; set none, and call trireme::checkpoint in the plug-in";
}

std::string heads_problem(const Config& c) {
  if (c.model.hidden % c.model.heads == 0) return {};
  return fmt::format("{} does not divide model.hidden = {}; each head needs the same whole width",
                     c.model.heads, c.model.hidden);
}

std::string rotary_problem(const Config& c) {
  if (c.model.type != "llama" || c.model.hidden % c.model.heads != 0) return {};
  const std::int64_t width = c.model.hidden / c.model.heads;
  if (width % 2 == 0) return {};
  return fmt::format(
      "{} heads of model.hidden = {} are {} wide each; the rotary embedding turns pairs and needs "
      "an even width",
      c.model.heads, c.model.hidden, width);
}

std::string kv_heads_problem(const Config& c) {
  if (c.model.kv_heads == 0) return {};
  if (c.model.type != "llama") {
    return fmt::format("has no effect with model.type: {}; remove it, or set model.type: llama",
                       c.model.type);
  }
  if (c.model.heads % c.model.kv_heads == 0) return {};
  return fmt::format("{} does not divide model.heads = {}", c.model.kv_heads, c.model.heads);
}

std::string rope_theta_problem(const Config& c) {
  if (c.model.type == "llama" || c.model.rope_theta == defaults().model.rope_theta) return {};
  return fmt::format("has no effect with model.type: {}; remove it, or set model.type: llama",
                     c.model.type);
}

std::string vocabulary_problem(const Config& c) {
  if (c.data.tokenizer != "bytes" || c.model.vocab == 0 || c.model.vocab >= 256) return {};
  return fmt::format("{} is too small for data.tokenizer: bytes; set 256 or more, or leave it out",
                     c.model.vocab);
}

std::string train_data_problem(const Config& c) {
  if (!c.data.train.empty()) return {};
  return "nothing to train on; set data.train: [{path: FILE}]";
}

std::string key_problem(const std::vector<DataSource>& sources) {
  for (const DataSource& source : sources) {
    if (source.format == "jsonl" || source.key == DataSource().key) continue;
    return fmt::format(
        "key: {} of {} has no effect with format: {}; remove it, or set format: jsonl", source.key,
        source.path, source.format);
  }
  return {};
}

std::string train_key_problem(const Config& c) { return key_problem(c.data.train); }
std::string eval_key_problem(const Config& c) { return key_problem(c.data.eval); }

std::string eval_fraction_problem(const Config& c) {
  if (c.data.eval.empty() || c.data.eval_fraction == defaults().data.eval_fraction) return {};
  return "has no effect because data.eval names its own files; remove one of the two";
}

std::string eval_data_problem(const Config& c) {
  if (c.train.eval_every == 0 || !c.data.eval.empty() || c.data.eval_fraction > 0) return {};
  return "nothing to evaluate on: data.eval is empty and data.eval_fraction is 0; set one of them, "
         "or "
         "train.eval_every: 0";
}

std::string sequence_problem(const Config& c) {
  if (!c.model.plugin.empty() || c.data.sequence_length <= c.model.context) return {};
  return fmt::format("{} is longer than model.context = {}; lower it or raise model.context",
                     c.data.sequence_length, c.model.context);
}

std::string batch_problem(const Config& c) {
  const std::int64_t global = c.train.global_batch_size;
  const std::int64_t micro = c.train.micro_batch_size;
  if (global % micro == 0) return {};
  const std::int64_t lower = global / micro * micro;
  return fmt::format("{} is not a multiple of train.micro_batch_size = {}; set {}{}", global, micro,
                     lower > 0 ? fmt::format("{} or ", lower) : "", lower + micro);
}

std::string betas_problem(const Config& c) {
  if (c.optimizer.betas.size() == 2) return {};
  return fmt::format("needs two numbers such as [0.9, 0.95], has {}", c.optimizer.betas.size());
}

// Of settings that only some optimizers look at, those that were changed for another.
std::string optimizer_problem(const Config& c) {
  struct Own {
    const char* key;
    bool changed;
    std::vector<std::string_view> types;
  };
  const Optimizer& o = c.optimizer;
  const Optimizer& d = defaults().optimizer;
  const Own all[] = {
      {"betas", o.betas != d.betas, {"adamw", "adam", "lion"}},
      {"eps", o.eps != d.eps, {"adamw", "adam", "adagrad"}},
      {"amsgrad", o.amsgrad != d.amsgrad, {"adamw", "adam"}},
      {"momentum", o.momentum != d.momentum, {"sgd", "adafactor"}},
      {"dampening", o.dampening != d.dampening, {"sgd"}},
      {"nesterov", o.nesterov != d.nesterov, {"sgd"}},
      {"lr_decay", o.lr_decay != d.lr_decay, {"adagrad"}},
      {"initial_accumulator", o.initial_accumulator != d.initial_accumulator, {"adagrad"}},
      {"adafactor_eps", o.adafactor_eps != d.adafactor_eps, {"adafactor"}},
      {"clip_threshold", o.clip_threshold != d.clip_threshold, {"adafactor"}},
      {"decay_rate", o.decay_rate != d.decay_rate, {"adafactor"}},
      {"scale_parameter", o.scale_parameter != d.scale_parameter, {"adafactor"}},
      {"relative_step", o.relative_step != d.relative_step, {"adafactor"}},
      {"warmup_init", o.warmup_init != d.warmup_init, {"adafactor"}},
  };
  std::vector<std::string> idle;
  for (const Own& own : all) {
    const bool used = std::ranges::find(own.types, std::string_view(o.type)) != own.types.end();
    if (own.changed && !used) idle.emplace_back(own.key);
  }
  if (idle.empty()) return {};
  return fmt::format("{} does not use optimizer.{}, which would have no effect; remove {}", o.type,
                     fmt::join(idle, ", optimizer."), idle.size() == 1 ? "it" : "them");
}

std::string nesterov_problem(const Config& c) {
  if (!c.optimizer.nesterov || (c.optimizer.momentum > 0 && c.optimizer.dampening == 0)) return {};
  return "needs optimizer.momentum above 0 and optimizer.dampening 0";
}

std::string dampening_problem(const Config& c) {
  if (c.optimizer.dampening == 0 || c.optimizer.momentum > 0) return {};
  return "has no effect without optimizer.momentum";
}

std::string maximize_problem(const Config& c) {
  if (!c.optimizer.maximize || c.optimizer.type != "adafactor") return {};
  return "adafactor only minimizes; set false";
}

std::string warmup_init_problem(const Config& c) {
  if (!c.optimizer.warmup_init || c.optimizer.relative_step) return {};
  return "has no effect without optimizer.relative_step: true";
}

std::string relative_step_problem(const Config& c) {
  if (!c.optimizer.relative_step) return {};
  if (c.optimizer.lr == defaults().optimizer.lr && c.schedule.type == "constant" &&
      c.schedule.warmup_steps == 0)
    return {};
  return "takes the rate from the number of the update alone: leave optimizer.lr out, and set "
         "schedule: {type: constant, warmup_steps: 0}";
}

std::string adafactor_eps_problem(const Config& c) {
  if (c.optimizer.adafactor_eps.size() == 2) return {};
  return fmt::format("needs two numbers such as [1e-30, 1e-3], has {}",
                     c.optimizer.adafactor_eps.size());
}

std::string groups_problem(const Config& c) {
  for (std::size_t i = 0; i < c.optimizer.groups.size(); ++i) {
    const std::size_t betas = c.optimizer.groups[i].betas.size();
    if (betas != 0 && betas != 2)
      return fmt::format("entry {}: betas needs two numbers, has {}", i, betas);
  }
  return {};
}

bool follows_metric(const Config& c) {
  return c.schedule.type == "reduce_lr_on_plateau" || c.schedule.type == "greedy";
}

std::string metric_problem(const Config& c) {
  if (!follows_metric(c) || c.train.eval_every > 0) return {};
  return fmt::format("{} follows the evaluation loss; set train.eval_every above 0",
                     c.schedule.type);
}

// Types by themselves: what they look at.
std::string idle_schedule_problem(const Config& c) {
  const auto is = [&](std::initializer_list<std::string_view> types) {
    return std::ranges::find(types, std::string_view(c.schedule.type)) != types.end();
  };
  const Schedule& d = defaults().schedule;
  if (c.schedule.warmup_steps != d.warmup_steps && c.schedule.warmup_steps != 0 &&
      (follows_metric(c) || is({"one_cycle", "OneCycle", "LRRangeTest"})))
    return fmt::format("{} has no warm-up by schedule.warmup_steps; remove that", c.schedule.type);
  if (c.schedule.hold != d.hold &&
      !is({"cosine", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "one_cycle"}))
    return fmt::format("schedule.hold has no effect with {}; remove it", c.schedule.type);
  return {};
}

std::string loss_scale_problem(const Config& c) {
  const std::string& text = c.precision.loss_scale;
  if (text != "dynamic") {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !(value > 0) ||
        !std::isfinite(value))
      return fmt::format("'{}' is neither dynamic nor a number above 0", text);
  }
  const Precision& d = defaults().precision;
  if (c.precision.compute == "fp16" || text == d.loss_scale) return {};
  return fmt::format("only fp16 needs a loss scale; remove it, or set precision.compute: fp16");
}

std::string dynamic_scale_problem(const Config& c) {
  const Precision& p = c.precision;
  const Precision& d = defaults().precision;
  const bool changed = p.initial_scale != d.initial_scale || p.growth_factor != d.growth_factor ||
                       p.backoff_factor != d.backoff_factor ||
                       p.growth_interval != d.growth_interval || p.hysteresis != d.hysteresis;
  if (changed && (p.compute != "fp16" || p.loss_scale != "dynamic"))
    return "settings of the dynamic loss scale have no effect here; they need precision: "
           "{compute: fp16, loss_scale: dynamic}";
  if (p.hysteresis == 1 &&
      (p.consecutive_hysteresis != d.consecutive_hysteresis || p.min_scale != d.min_scale))
    return "consecutive_hysteresis and min_scale have no effect without precision.hysteresis above "
           "1";
  if (p.hysteresis > 1 &&
      (p.growth_factor != d.growth_factor || p.backoff_factor != d.backoff_factor))
    return "with hysteresis the rule is DeepSpeed's, which always doubles and halves; leave "
           "growth_factor and backoff_factor out";
  return {};
}

std::string moments_problem(const Config& c) {
  const bool none =
      c.optimizer.momentum == 0 && (c.optimizer.type == "sgd" || c.optimizer.type == "adafactor");
  if (c.precision.moments == defaults().precision.moments || !none) return {};
  return fmt::format("{} without optimizer.momentum keeps no moments of that size; remove it",
                     c.optimizer.type);
}

std::string warmup_problem(const Config& c) {
  if (c.schedule.warmup_steps <= horizon(c)) return {};
  const bool own = c.schedule.total_steps > 0;
  return fmt::format(
      "{} is longer than the schedule ({} = {}); lower it or set schedule.total_steps",
      c.schedule.warmup_steps, own ? "schedule.total_steps" : "train.max_steps", horizon(c));
}

std::string min_lr_problem(const Config& c) {
  constexpr std::array<std::string_view, 5> kUse{
      "linear", "cosine", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"};
  if (c.schedule.min_lr_ratio == defaults().schedule.min_lr_ratio ||
      std::ranges::find(kUse, std::string_view(c.schedule.type)) != kUse.end())
    return {};
  return fmt::format(
      "has no effect with schedule.type: {}; remove it, or set schedule.type: linear or cosine",
      c.schedule.type);
}

std::string shard_size_problem(const Config& c) {
  if (c.parallel.shard_size == 0 || c.parallel.strategy == "hsdp") return {};
  return fmt::format(
      "only hsdp has groups of ranks; set null, or parallel.strategy: hsdp instead of {}",
      c.parallel.strategy);
}

std::string reshard_problem(const Config& c) {
  const bool gathers = c.parallel.strategy == "zero3" || c.parallel.strategy == "hsdp";
  if (c.parallel.reshard_after_forward || gathers) return {};
  return fmt::format(
      "has no effect with parallel.strategy: {}, which keeps weights whole; set true",
      c.parallel.strategy);
}

bool offloads_to_nvme(const Config& c) {
  return c.offload.work == "nvme" || c.offload.grad == "nvme" || c.offload.optimizer == "nvme";
}

std::string nvme_path_problem(const Config& c) {
  if (offloads_to_nvme(c) && c.offload.nvme_path.empty())
    return "must name a folder on a local disk, because offload names nvme";
  if (!offloads_to_nvme(c) && !c.offload.nvme_path.empty())
    return "has no effect, because nothing is offloaded to nvme; set null";
  return {};
}

std::string offload_work_problem(const Config& c) {
  const std::string& strategy = c.parallel.strategy;
  if (c.offload.work != "nvme" || strategy == "zero3" || strategy == "hsdp") return {};
  return fmt::format(
      "nvme needs weights in shards, which {} has not; set none, or "
      "parallel.strategy: zero3 or hsdp",
      strategy);
}

std::string offload_grad_problem(const Config& c) {
  const std::string& strategy = c.parallel.strategy;
  if (c.offload.grad != "nvme" || (strategy != "ddp" && strategy != "zero1")) return {};
  return fmt::format(
      "nvme needs gradients in shards, which {} has not; set none, or "
      "parallel.strategy: zero2, zero3 or hsdp",
      strategy);
}

std::string async_problem(const Config& c) {
  if (!c.checkpoint.async) return {};
  return "saving while training is not in this version; set false";
}

std::string transfer_problem(const Config& c) {
  if (c.checkpoint.driver == "mpiio" || c.checkpoint.transfer == Checkpoint().transfer) return {};
  return "has no effect on the direct driver; remove it, or set checkpoint.driver: mpiio";
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = {
      {{"model.plugin", "model.args"}, plugin_problem},
      {{"train.recompute", "model.plugin"}, plugin_recompute_problem},
      {{"model.heads", "model.hidden"}, heads_problem},
      {{"model.heads", "model.hidden", "model.type"}, rotary_problem},
      {{"model.kv_heads", "model.heads", "model.type"}, kv_heads_problem},
      {{"model.rope_theta", "model.type"}, rope_theta_problem},
      {{"model.vocab", "data.tokenizer"}, vocabulary_problem},
      {{"data.train"}, train_data_problem},
      {{"data.train"}, train_key_problem},
      {{"data.eval"}, eval_key_problem},
      {{"data.eval_fraction", "data.eval"}, eval_fraction_problem},
      {{"train.eval_every", "data.eval", "data.eval_fraction"}, eval_data_problem},
      {{"data.sequence_length", "model.context"}, sequence_problem},
      {{"train.global_batch_size", "train.micro_batch_size"}, batch_problem},
      {{"optimizer.betas"}, betas_problem},
      {{"optimizer.type"}, optimizer_problem},
      {{"optimizer.nesterov", "optimizer.momentum", "optimizer.dampening"}, nesterov_problem},
      {{"optimizer.dampening", "optimizer.momentum"}, dampening_problem},
      {{"optimizer.maximize", "optimizer.type"}, maximize_problem},
      {{"optimizer.warmup_init", "optimizer.relative_step"}, warmup_init_problem},
      {{"optimizer.relative_step", "optimizer.lr", "schedule.type", "schedule.warmup_steps"},
       relative_step_problem},
      {{"optimizer.adafactor_eps"}, adafactor_eps_problem},
      {{"optimizer.groups"}, groups_problem},
      {{"schedule.type", "train.eval_every"}, metric_problem},
      {{"schedule.type", "schedule.warmup_steps", "schedule.hold"}, idle_schedule_problem},
      {{"precision.moments", "optimizer.type", "optimizer.momentum"}, moments_problem},
      {{"precision.loss_scale", "precision.compute"}, loss_scale_problem},
      {{"precision.initial_scale", "precision.growth_factor", "precision.backoff_factor",
        "precision.growth_interval", "precision.hysteresis", "precision.consecutive_hysteresis",
        "precision.min_scale", "precision.compute", "precision.loss_scale"},
       dynamic_scale_problem},
      {{"schedule.warmup_steps", "schedule.total_steps", "train.max_steps"}, warmup_problem},
      {{"schedule.min_lr_ratio", "schedule.type"}, min_lr_problem},
      {{"parallel.shard_size", "parallel.strategy"}, shard_size_problem},
      {{"parallel.reshard_after_forward", "parallel.strategy"}, reshard_problem},
      {{"offload.nvme_path", "offload.work", "offload.grad", "offload.optimizer"},
       nvme_path_problem},
      {{"offload.work", "parallel.strategy"}, offload_work_problem},
      {{"offload.grad", "parallel.strategy"}, offload_grad_problem},
      {{"checkpoint.async"}, async_problem},
      {{"checkpoint.transfer", "checkpoint.driver"}, transfer_problem},
  };
  return table;
}

template <class Entry>
void check_entries(std::span<const EntryField<Entry>> fields, std::vector<Entry> entries,
                   std::string_view path, std::vector<Finding>& found,
                   const std::set<std::string>& unreadable) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    for (const EntryField<Entry>& field : fields) {
      std::string full = fmt::format("{}.{}.{}", path, i, field.path);
      if (unreadable.contains(full)) continue;
      if (auto problem = value_problem(field, field.slot(entries[i]))) {
        found.push_back({std::move(full), std::move(*problem)});
      }
    }
  }
}

}  // namespace

std::vector<Finding> findings(const Config& config, const std::set<std::string>& unreadable) {
  std::vector<Finding> found;
  std::set<std::string> bad = unreadable;
  Config copy = config;  // slots point into a Config that may be written
  for (const Field& field : fields()) {
    const std::string path(field.path);
    if (unreadable.contains(path)) continue;
    if (auto problem = value_problem(field, field.slot(copy))) {
      bad.insert(path);
      found.push_back({path, std::move(*problem)});
    }
  }
  check_entries(source_fields(), config.data.train, "data.train", found, unreadable);
  check_entries(source_fields(), config.data.eval, "data.eval", found, unreadable);
  check_entries(group_fields(), config.optimizer.groups, "optimizer.groups", found, unreadable);
  for (const Rule& rule : rules()) {
    const bool usable = std::ranges::none_of(
        rule.paths, [&](std::string_view path) { return bad.contains(std::string(path)); });
    if (!usable) continue;
    if (std::string problem = rule.problem(config); !problem.empty()) {
      found.push_back({std::string(rule.paths.front()), std::move(problem)});
    }
  }
  return found;
}

std::string located(const Finding& finding, const Sources& sources) {
  const auto source = sources.find(finding.path);
  if (source == sources.end()) return fmt::format("{}: {}", finding.path, finding.text);
  return fmt::format("{}: {}: {}", source->second, finding.path, finding.text);
}

void throw_problems(const std::vector<std::string>& problems) {
  constexpr std::size_t kMaxListed = 50;
  if (problems.empty()) return;
  std::string text = problems.size() == 1
                         ? "the configuration has a problem:"
                         : fmt::format("the configuration has {} problems:", problems.size());
  for (std::size_t i = 0; i < std::min(problems.size(), kMaxListed); ++i)
    text += "\n  " + problems[i];
  if (problems.size() > kMaxListed)
    text += fmt::format("\n  ... and {} more", problems.size() - kMaxListed);
  throw Error(ErrorKind::kConfig, text);
}

}  // namespace detail

std::vector<std::string> check(const Config& config, const Sources& sources) {
  std::vector<std::string> texts;
  for (const detail::Finding& finding : detail::findings(config, {})) {
    texts.push_back(detail::located(finding, sources));
  }
  return texts;
}

void require_valid(const Config& config, const Sources& sources) {
  detail::throw_problems(check(config, sources));
}

}  // namespace trireme::config
