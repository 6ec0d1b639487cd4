#include "check.hpp"

#include "trireme/base/error.hpp"
#include "trireme/config/fields.hpp"

#include "values.hpp"
#include <fmt/format.h>

#include <algorithm>

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
  if (c.data.sequence_length <= c.model.context) return {};
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

std::string warmup_problem(const Config& c) {
  if (c.schedule.warmup_steps <= horizon(c)) return {};
  const bool own = c.schedule.total_steps > 0;
  return fmt::format(
      "{} is longer than the schedule ({} = {}); lower it or set schedule.total_steps",
      c.schedule.warmup_steps, own ? "schedule.total_steps" : "train.max_steps", horizon(c));
}

std::string min_lr_problem(const Config& c) {
  if (c.schedule.type != "constant" || c.schedule.min_lr_ratio == defaults().schedule.min_lr_ratio)
    return {};
  return "has no effect with schedule.type: constant; remove it, or set schedule.type: linear or "
         "cosine";
}

std::string shard_size_problem(const Config& c) {
  if (c.parallel.shard_size == 0) return {};
  return "only hsdp has groups of ranks, and hsdp is not in this version; set null";
}

std::string reshard_problem(const Config& c) {
  if (c.parallel.reshard_after_forward) return {};
  if (c.parallel.strategy == "ddp") return "has no effect with parallel.strategy: ddp; set true";
  return "keeping weights between forward and backward is not in this version; set true, or "
         "parallel.strategy: ddp";
}

std::string nvme_path_problem(const Config& c) {
  if (c.offload.nvme_path.empty()) return {};
  return "nothing is offloaded to NVMe, which is not in this version; set null";
}

std::string async_problem(const Config& c) {
  if (!c.checkpoint.async) return {};
  return "saving while training is not in this version; set false";
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = {
      {{"model.heads", "model.hidden"}, heads_problem},
      {{"model.heads", "model.hidden", "model.type"}, rotary_problem},
      {{"model.kv_heads", "model.heads", "model.type"}, kv_heads_problem},
      {{"model.rope_theta", "model.type"}, rope_theta_problem},
      {{"model.vocab", "data.tokenizer"}, vocabulary_problem},
      {{"data.train"}, train_data_problem},
      {{"data.eval_fraction", "data.eval"}, eval_fraction_problem},
      {{"train.eval_every", "data.eval", "data.eval_fraction"}, eval_data_problem},
      {{"data.sequence_length", "model.context"}, sequence_problem},
      {{"train.global_batch_size", "train.micro_batch_size"}, batch_problem},
      {{"optimizer.betas"}, betas_problem},
      {{"schedule.warmup_steps", "schedule.total_steps", "train.max_steps"}, warmup_problem},
      {{"schedule.min_lr_ratio", "schedule.type"}, min_lr_problem},
      {{"parallel.shard_size"}, shard_size_problem},
      {{"parallel.reshard_after_forward", "parallel.strategy"}, reshard_problem},
      {{"offload.nvme_path"}, nvme_path_problem},
      {{"checkpoint.async"}, async_problem},
  };
  return table;
}

void check_sources(std::vector<DataSource> sources, std::string_view path,
                   std::vector<Finding>& found, const std::set<std::string>& unreadable) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    for (const SourceField& field : source_fields()) {
      std::string full = fmt::format("{}.{}.{}", path, i, field.path);
      if (unreadable.contains(full)) continue;
      if (auto problem = value_problem(field, field.slot(sources[i]))) {
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
  check_sources(config.data.train, "data.train", found, unreadable);
  check_sources(config.data.eval, "data.eval", found, unreadable);
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
