// Where micro-batches begin and end in a loop that is not ours, and what a step does.
#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/memory/process.hpp"

#include "accelerator_core.hpp"
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

namespace trireme::train {

namespace {

constexpr std::int64_t kMostSkips = 50;

bool trains(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) return true;
  }
  return false;
}

void throw_everywhere(Error error) {
  error.everywhere = true;
  throw error;
}

}  // namespace

void touch(ModelState& model) { model.core.touch(model); }

// The most micro-batches of a rank in a step.
std::int64_t AcceleratorCore::turns_foreseen() const {
  const std::int64_t groups = options.gradient_accumulation_steps;
  const std::int64_t calls = options.max_backward_calls > 0 ? options.max_backward_calls
                             : groups == 1                  ? 2
                                                            : 1;
  return groups * calls;
}

void AcceleratorCore::set_autocast(bool enabled) {
  if (compute == at::kFloat) return;
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
  if (!enabled) at::autocast::clear_cache();
}

void AcceleratorCore::touch(ModelState& model) {
  if (!model.engine) build(model);
  if (model.open) return;
  set_autocast(true);
  if (!at::GradMode::is_enabled() || model.owner == nullptr || !trains(*model.module)) {
    if (!std::exchange(model.evaluating, true)) model.engine->begin_evaluation();
    return;
  }
  if (model.sums) {
    throw_everywhere(Error(ErrorKind::kConfig,
                           "a model was used between the clipping of its gradients and step()",
                           "clip right before optimizer.step()"));
  }
  if (!std::exchange(model.begun, true)) {
    model.engine->begin_step(Step(completed_steps + 1));
    model.turns = 0;
    model.group = group;
  }
  if (model.turns >= turns_foreseen()) {
    throw_everywhere(
        Error(ErrorKind::kConfig,
              fmt::format("more than {} backward() calls of one model without optimizer.step()",
                          turns_foreseen()),
              "set AcceleratorOptions::max_backward_calls, or gradient_accumulation_steps"));
  }
  LoaderState* const loader = active_loader();
  model.engine->begin_micro_batch(loader == nullptr || loader->counts());
  model.open = true;
  model.evaluating = false;
}

// Every batch has random numbers of its own, whoever gets it.
void AcceleratorCore::on_batch(LoaderState& loader) {
  const std::int64_t batch = (loader.step() - 1) * num_ranks() + rank();
  at::manual_seed(mix(mix(mix(options.seed, stream_key(0, "batch")), loader.epoch()),
                      static_cast<std::uint64_t>(batch)));
}

void AcceleratorCore::backward(const at::Tensor& loss, const BackwardOptions& how) {
  context.session().node().set_place("backward", completed_steps + 1);
  if (loss.numel() != 1) {
    throw Error(ErrorKind::kConfig, "backward() of a loss that is not a single number",
                "take its mean, or its sum with num_targets");
  }
  set_autocast(false);
  const bool scaled = options.mixed_precision == "fp16";
  const at::Tensor value = scaled ? loss * scaler.scale() : loss;
  value.backward({}, how.retain_graph);
  bool reached = false;
  for (ModelState& model : models) {
    if (!model.open || !model.engine->has_gradients()) continue;
    reached = true;
    // Without accumulate(), calls of one step add up, unless steps are counted by hand.
    const bool by_hand = !in_accumulate && options.gradient_accumulation_steps > 1;
    const std::int64_t now = in_accumulate ? micro_batch : by_hand ? model.turns : 0;
    const bool again = model.turns > 0 && model.counted == now;
    model.engine->end_micro_batch({value.detach(), how.num_targets > 0 ? how.num_targets
                                                   : again             ? 0
                                                                       : 1});
    model.counted = now;
    model.open = false;
    ++model.turns;
  }
  if (reached) return;
  throw Error(ErrorKind::kConfig, "backward() of a loss that depends on no prepared model",
              "use what prepare() returned, with the optimizer prepared too");
}

const parallel::StepSums& AcceleratorCore::finish(ModelState& model) {
  if (model.sums) return *model.sums;
  model.open = false;  // a forward without a backward
  model.engine->end_step();
  model.sums = model.engine->sums({false, memory::peak_resident()});
  if (!model.sums->unused.empty() && !std::exchange(unused_noted, true)) {
    context.log().warn(fmt::format(
        "{} parameters that train had no gradient in this step, the first {}: it counts as zero",
        model.sums->unused.size(), model.sums->unused[0]));
  }
  return *model.sums;
}

void AcceleratorCore::discard(ModelState& model) {
  if (model.turns > 0) {
    if (!model.sums) model.engine->end_step();
    model.engine->discard();
  }
  model.sums.reset();
  model.begun = false;
  model.open = false;
  model.turns = 0;
  model.counted = -1;
  model.clip = 1;
  model.clip_value.reset();
}

double AcceleratorCore::mean_scale(const parallel::StepSums& sums) const {
  const double inverse = options.mixed_precision == "fp16" ? double{scaler.inverse()} : 1.0;
  return inverse / static_cast<double>(std::max<std::int64_t>(1, sums.num_targets));
}

void AcceleratorCore::step(OptimizerState& optimizer) {
  if (!sync) return;
  std::vector<ModelState*> ready;
  for (ModelState* model : optimizer.models) {
    if (model->begun && model->turns > 0) ready.push_back(model);
  }
  if (ready.empty()) {
    throw Error(ErrorKind::kConfig, "optimizer.step() without a backward() before it",
                "call accelerator.backward(loss) first");
  }
  if (optimizer.torch != nullptr && fingerprint(*optimizer.torch) != optimizer.fingerprint) {
    throw Error(ErrorKind::kConfig,
                "an optimizer's options other than learning rates changed after prepare()",
                "set them before");
  }
  std::string non_finite;
  double square_norm = 0;
  for (ModelState* model : ready) {
    const parallel::StepSums& sums = finish(*model);
    if (non_finite.empty()) non_finite = sums.non_finite;
    square_norm += sums.square_norm * mean_scale(sums) * mean_scale(sums);
  }
  last_loss = ready[0]->sums->loss * mean_scale(*ready[0]->sums);
  last_norm = std::sqrt(square_norm);
  optimizer.skipped = !non_finite.empty();
  ++completed_steps;
  if (optimizer.skipped) {
    ++skipped_steps;
    context.log().warn(fmt::format("step {}: no update, the gradient of {} is not finite",
                                   completed_steps, non_finite));
    if (++optimizer.skips_in_a_row >= kMostSkips) {
      throw_everywhere(
          Error(ErrorKind::kConfig,
                fmt::format("gradients were not finite for {} steps in a row, first in {}",
                            optimizer.skips_in_a_row, non_finite),
                "lower the learning rate, or look at the data"));
    }
  } else {
    ++optimizer.updates;
    optimizer.skips_in_a_row = 0;
  }
  for (ModelState* model : ready) {
    if (!optimizer.skipped) {
      optim::UpdateStep update{.number = optimizer.updates,
                               .grad_scale = mean_scale(*model->sums) * model->clip,
                               .rate = optimizer.rate};
      update.clip_value = model->clip_value;
      if (optimizer.torch != nullptr) {
        update.rates = {0.0};
        for (const std::size_t g : model->group_of)
          update.rates.push_back(optimizer.torch->param_groups()[g].options().get_lr());
      }
      model->optimizer->update(*model->engine, *model->sums, update);
    }
    model->engine->publish();
    model->sums.reset();
    model->begun = false;
    model->turns = 0;
    model->counted = -1;
    model->clip = 1;
    model->clip_value.reset();
  }
  if (options.mixed_precision == "fp16") scaler.update(optimizer.skipped);
}

// Gradients that accumulate in the group at hand stay, until a backward of its last micro-batch is
// to be taken back.
void AcceleratorCore::zero_grad(OptimizerState& optimizer) {
  if (!sync) return;
  for (ModelState* model : optimizer.models) {
    if (!model->begun) continue;
    const bool of_this_group = in_accumulate && model->group == group;
    if (of_this_group && model->turns > 0 && model->counted != micro_batch) continue;
    if (model->turns > 0) discard(*model);
  }
}

void AcceleratorCore::begin_micro_batch(std::optional<bool> decided) {
  in_accumulate = true;
  ++micro_batch;
  LoaderState* const loader = active_loader();
  if (decided) {
    ++micro_step;
    sync = *decided;
  } else if (options.sync_with_dataloader && loader != nullptr && loader->end_of_loader()) {
    micro_step = 0;
    sync = true;
  } else {
    ++micro_step;
    sync = micro_step % options.gradient_accumulation_steps == 0;
  }
}

void AcceleratorCore::end_micro_batch() {
  if (sync) ++group;
  in_accumulate = false;
  sync = true;
}

}  // namespace trireme::train
