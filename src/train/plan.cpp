#include "trireme/train/plan.hpp"

#include "trireme/data/tokenizer.hpp"
#include "trireme/model/language_model.hpp"
#include "trireme/obs/table.hpp"
#include "trireme/parallel/activations.hpp"
#include "trireme/parallel/deferred.hpp"
#include "trireme/parallel/units.hpp"

#include "options.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>

namespace trireme::train {

namespace {

// Forward and backward, and forward once more where blocks are made again.
int passes(const config::Config& config) { return config.train.recompute == "full" ? 3 : 2; }

// Weights, gradients and optimizer of the whole model in one place, as estimates elsewhere give it.
struct Estimate {
  const char* type;
  std::int64_t element;
};
constexpr Estimate kEstimates[] = {{"float32", 4}, {"bf16 or fp16", 2}};

Bytes by_formula(const config::Model& shape, const config::Config& config) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(compute_type(config)));
  return Bytes(model::activation_bytes(shape, config.train.micro_batch_size,
                                       config.data.sequence_length, element,
                                       config.train.recompute));
}

// One micro-batch of the first token alone: what a plug-in keeps is hardly up to the words.
Bytes by_measurement(model::LanguageModel& model, const config::Config& config) {
  const at::Tensor tokens_BT =
      torch::zeros({config.train.micro_batch_size, config.data.sequence_length},
                   torch::TensorOptions(at::kLong));
  return parallel::measure_activations(*model.network(), compute_type(config),
                                       [&] { return model.loss_sum(tokens_BT, tokens_BT); });
}

}  // namespace

TrainPlan plan(const config::Config& config, const parallel::Machine& machine) {
  parallel::require_work_for_all(config.train.global_batch_size / config.train.micro_batch_size,
                                 machine.num_ranks);
  config::Model shape = config.model;
  if (shape.vocab == 0)
    shape.vocab = data::load_tokenizer(config.data.tokenizer)->vocabulary_size();
  shape = model::resolved(shape);
  std::shared_ptr<model::LanguageModel> model;
  const parallel::DeferredModule module(config.run.seed, [&] {
    model = model::make(shape);
    return model->network();
  });
  parallel::EngineOptions options = engine_options(config);
  optim::Optimizer(optimizer_options(config)).configure(options);
  const std::vector<parallel::Unit> units =
      parallel::describe(parallel::find_units(parallel::tree_of(*module.module()), options.units));

  TrainPlan result;
  const parallel::Layout layout(units, {1, 1});
  for (const parallel::Unit& unit : layout.units()) {
    UnitSize& size = result.units.emplace_back(UnitSize{unit.name, 0});
    for (const parallel::Slot& slot : unit.slots) size.num_parameters += slot.size;
    result.num_parameters += size.num_parameters;
    if (unit.trains) result.num_trained += size.num_parameters;
  }
  for (int rank = 0; rank < machine.num_ranks; ++rank) {
    result.ranks.push_back(
        parallel::plan_rank(units, options, machine, Rank(rank), passes(config)));
    if (result.ranks.back().memory.total() > result.ranks[result.largest].memory.total())
      result.largest = result.ranks.size() - 1;
  }
  result.activations_by = shape.plugin.empty() ? "formula" : "measurement";
  result.activations =
      shape.plugin.empty() ? by_formula(shape, config) : by_measurement(*model, config);
  result.checkpoint = parallel::checkpoint_size(units, options);
  result.num_nodes = (machine.num_ranks + machine.ranks_per_node - 1) / machine.ranks_per_node;
  return result;
}

std::string describe(const TrainPlan& plan, const config::Config& config,
                     const parallel::Machine& machine) {
  const parallel::RankPlan& rank = plan.ranks[plan.largest];
  const parallel::MemoryUse& memory = rank.memory;
  const auto largest = std::ranges::max_element(plan.units, {}, &UnitSize::num_parameters);
  std::string text = obs::aligned(
      "plan",
      {{"model", fmt::format("{}: {} parameters, {} of them trained, in {} units, the largest {} "
                             "with {}",
                             model_name(config.model), human_count(plan.num_parameters),
                             human_count(plan.num_trained), plan.units.size(), largest->name,
                             human_count(largest->num_parameters))},
       {"ranks", fmt::format("{} on {} nodes", machine.num_ranks, plan.num_nodes)},
       {"strategy",
        fmt::format("{}, compute {}", config.parallel.strategy, config.precision.compute)}});
  const std::string activations = fmt::format("activations (by {})", plan.activations_by);
  const auto row = [](const char* what, Bytes bytes) {
    return std::pair<std::string, std::string>(what, human(bytes));
  };
  text += obs::aligned(
      fmt::format("memory of rank {}, which needs the most", plan.largest),
      {row("weights", memory.work), row("gradients", memory.grad),
       row("master weights", memory.master), row("moments", memory.moments),
       row("buffers and rings", memory.transient), row(activations.c_str(), plan.activations),
       row("in all", Bytes(memory.total().value + plan.activations.value)),
       row("files on NVMe", memory.disk)});
  text += obs::aligned("each step", {row("sent between nodes, weights", rank.sent_weights),
                                     row("sent between nodes, gradients", rank.sent_gradients)});
  text += obs::aligned("on disk", {row("a checkpoint", plan.checkpoint)});
  std::vector<std::vector<std::string>> table{
      {"dtype", "largest unit", "weights", "training with moments"}};
  for (const Estimate& estimate : kEstimates) {
    const std::int64_t state = plan.checkpoint.value;
    table.push_back(
        {estimate.type, human(Bytes(largest->num_parameters * estimate.element)),
         human(Bytes(plan.num_parameters * estimate.element)),
         human(Bytes(plan.num_parameters * estimate.element + plan.num_trained * 4 + state))});
  }
  return text + "the whole model in one place\n" + obs::columns(table);
}

std::string to_json(const TrainPlan& plan, const config::Config& config,
                    const parallel::Machine& machine) {
  nlohmann::ordered_json json;
  json["ranks"] = machine.num_ranks;
  json["nodes"] = plan.num_nodes;
  json["strategy"] = config.parallel.strategy;
  json["parameters"] = plan.num_parameters;
  json["trained"] = plan.num_trained;
  for (const UnitSize& unit : plan.units)
    json["units"].push_back({{"name", unit.name}, {"parameters", unit.num_parameters}});
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto& [memory, weights, gradients] = plan.ranks[r];
    json["by_rank"].push_back({{"rank", r},
                               {"weights", memory.work.value},
                               {"gradients", memory.grad.value},
                               {"master", memory.master.value},
                               {"moments", memory.moments.value},
                               {"buffers", memory.transient.value},
                               {"nvme", memory.disk.value},
                               {"sent_weights", weights.value},
                               {"sent_gradients", gradients.value}});
  }
  json["activations"] = plan.activations.value;
  json["activations_by"] = plan.activations_by;
  json["checkpoint"] = plan.checkpoint.value;
  return json.dump();
}

}  // namespace trireme::train
