#include "refused.hpp"

#include <algorithm>
#include <string_view>

namespace trireme::config::foreign {

namespace {

struct Refused {
  ForeignKind kind;
  std::string_view path;
  std::string_view instead;
};

constexpr auto kDs = ForeignKind::kDeepSpeed;
constexpr auto kHf = ForeignKind::kTrainingArguments;

constexpr Refused kRefused[] = {
    {kHf, "label_smoothing_factor", "label_smoothing_factor: 0"},
    {kHf, "neftune_noise_alpha", "leave it out"},
    {kHf, "optim_target_modules", "leave it out"},
    {kHf, "optim_args", "optimizer settings natively, such as --set optimizer.momentum=0.9"},
    {kHf, "auto_find_batch_size", "auto_find_batch_size: false; trireme plan tells what fits"},
    {kHf, "parallelism_config", "leave it out, or --set parallel.strategy=hsdp"},
    {kHf, "data_seed", "seed: the same number, or leave it out"},
    {kHf, "fsdp_config.ignored_modules", "--set parallel.ignored=[...]"},
    {kDs, "gradient_allreduce_op", "gradient_allreduce_op: \"mean\""},
    {kDs, "fp16.fp16_master_weights_and_grads", "false"},
    {kDs, "bf16.bf16_master_weights_and_grads", "false"},
    {kDs, "bf16.bf16_optimizer_states", "false, and --set precision.moments=bf16"},
    {kDs, "zero_optimization.zenflow", "leave it out"},
    {kDs, "zero_optimization.zeropp_loco_param", "leave it out"},
    {kDs, "tensor_parallel", "leave it out"},
    {kDs, "expert_parallel", "leave it out"},
    {kDs, "pipeline", "leave it out"},
    {kDs, "elasticity", "\"enabled\": false; a run goes on with any number of ranks"},
    {kDs, "data_efficiency", "\"enabled\": false"},
    {kDs, "curriculum_learning", "\"enabled\": false"},
    {kDs, "progressive_layer_drop", "\"enabled\": false"},
    {kDs, "eigenvalue", "\"enabled\": false"},
    {kDs, "compression_training", "leave it out"},
    {kDs, "quantize_training", "leave it out"},
};

// null, false, 0, "none", nothing at all, or a group that says enabled: false.
bool off(const Value& value) {
  if (value.null()) return true;
  if (const auto flag = value.boolean()) return !*flag;
  if (const auto number = value.number()) return *number == 0;
  if (const auto text = value.text()) return text->empty() || *text == "none" || *text == "mean";
  if (const auto* list = std::get_if<Value::List>(&value.data)) return list->empty();
  const auto& map = std::get<Value::Map>(value.data);
  return map.empty() || !value.at("enabled").boolean().value_or(true);
}

}  // namespace

void refuse_if_it_changes_results(ForeignKind kind, const Value& meaning, ForeignFinding& finding) {
  const auto found = std::ranges::find_if(kRefused, [&](const Refused& known) {
    return known.kind == kind && known.path == finding.path;
  });
  if (found == std::end(kRefused) || off(finding.value)) return;
  if (found->path == "data_seed" && finding.value.json() == meaning.at("run").at("seed").json())
    return;
  finding.severity = Severity::kError;
  finding.why = "not in this version, and leaving it out would change the results";
  finding.suggest = found->instead;
}

}  // namespace trireme::config::foreign
