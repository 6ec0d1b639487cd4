// What went wrong elsewhere when training was sharded, accumulated, offloaded or resumed, each as a test named after what
// the users saw. The rest is in tests/scenario/reports.py, which needs whole runs.
#include "trireme/base/error.hpp"
#include "trireme/memory/process.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/train/checkpointing.hpp"

#include "ckpt/world_folder.hpp"
#include "comm/session.hpp"
#include "parallel/engine_world.hpp"
#include "parallel/kokkos.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::testing {
namespace {

using parallel::Engine;
using parallel::EngineOptions;
using parallel::MicroBatchLoss;
using parallel::StepSums;

const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

// A network in training: engine, optimizer and counters.
struct Training {
  Training(comm::Session& session, const EngineOptions& engine_options, std::uint64_t seed = 3)
      : session(session), engaged(session, engine_options, seed), optimizer({.lr = 0.01, .weight_decay = 0.01}) {
    optimizer.attach(engaged.engine, session.world());
  }

  StepSums step(std::int64_t micro_batches = 0, double loss_scale = 1) {
    const std::int64_t number = ++state.step;
    engine().accumulate(Step(number), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->loss(number, m) * loss_scale, NetworkImpl::kTargets};
    }, micro_batches);
    StepSums sums = engine().sums();
    optimizer.update(engine(), sums,
                     {.number = number, .grad_scale = 1 / (static_cast<double>(sums.num_targets) * loss_scale)});
    engine().publish();
    return sums;
  }

  Engine& engine() { return engaged.engine; }
  Values master() { return array(0); }
  // Of all ranks: master, or a moment from 1 on.
  Values array(int index) { return state_of(session.world(), engine(), index); }

  comm::Session& session;
  Engaged<Network> engaged;
  optim::Optimizer optimizer;
  train::TrainingState state;
};

class TrainingReports : public ::testing::Test {
 protected:
  // Ranks that share memory, or of which each counts as a node.
  comm::Session session{nullptr, nullptr, session_options(0)};
  comm::Session apart{nullptr, nullptr, session_options(1)};
  comm::Communicator& world = session.world();
  int ranks = world.size();
  WorldFolder folder;

  EngineOptions options(const std::string& strategy, std::int64_t share = 2) const {
    EngineOptions result;
    result.strategy = strategy;
    result.compute = at::kFloat;
    result.num_micro_batches = share * ranks;
    if (strategy == "hsdp") result.shard_size = ranks % 2 == 0 ? 2 : ranks;
    return result;
  }
  EngineOptions offloaded(EngineOptions result) const {
    result.work_on_disk = result.grad_on_disk = result.state_on_disk = true;
    result.disk.folder = folder.path();
    return result;
  }
  std::filesystem::path save(Training& training) {
    return ckpt::save(world, train::snapshot(training.engine(), training.optimizer, training.state, "{}"),
                      {folder.path() / "checkpoints", Step(training.state.step), 0});
  }
  void load(Training& training, const std::filesystem::path& from) {
    const auto state = train::restore(training.engine(), training.optimizer, ckpt::Reader(from));
    if (state) training.state = *state;
    training.engine().refresh_work();
  }
};

struct LargeImpl : nn::Module {
  LargeImpl() {
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 64; ++i) layers->push_back(nn::Linear(nn::LinearOptions(1024, 1024).bias(false)));
  }
  nn::ModuleList layers{nullptr};
};
TORCH_MODULE(Large);

// transformers, accelerate: "RAM-efficient" loading still let every rank allocate the whole model.
TEST_F(TrainingReports, no_rank_holds_the_whole_model_when_it_is_made) {
  const Bytes before = memory::usage().proportional;
  if (before.value == 0) GTEST_SKIP() << "no /proc/self/smaps_rollup here";
  EngineOptions some = options("zero3");
  some.compute = at::kBFloat16;
  some.num_moments = 0;
  // First of all tests, so that no earlier peak hides this one.
  const std::int64_t peak_before = memory::peak_resident().value;
  Engaged<Large> engaged(apart, some);
  // Whole in fp32: 256 MiB. One layer of 4 MiB may be in the making, and weights in use are in bf16.
  const std::int64_t grown = memory::peak_resident().value - peak_before;
  const std::int64_t planned = engaged.engine.memory().total().value;
  EXPECT_LE(grown, planned + (16 << 20)) << "planned " << planned;
  if (ranks >= 4) {
    EXPECT_LT(engaged.engine.memory().master.value, 256 << 20 >> 1);
  }
}

// accelerate: a sharded optimizer was saved and failed to load, since the step count was missing.
TEST_F(TrainingReports, a_sharded_optimizer_that_was_saved_loads_and_goes_on) {
  Training whole(apart, options("zero3"));
  whole.step();
  const auto checkpoint = save(whole);
  Training second(apart, options("zero3"), /*seed=*/99);
  load(second, checkpoint);
  EXPECT_EQ(second.state.step, 1);
  EXPECT_EQ(whole.step().loss, second.step().loss);
  EXPECT_EQ(whole.master(), second.master());
}

// DeepSpeed: padding was forgotten when a checkpoint was loaded on other ranks, and moments moved along; a test had
// compared only their groups.
TEST_F(TrainingReports, every_element_of_every_moment_is_the_same_after_a_load_in_other_shards) {
  Training first(apart, options("zero3"));
  for (int i = 0; i < 3; ++i) first.step();
  const auto checkpoint = save(first);
  for (const char* strategy : {"ddp", "zero1", "zero2", "hsdp"}) {
    Training other(session, options(strategy), 99);
    load(other, checkpoint);
    for (int array = 0; array <= other.engine().num_moments(); ++array)
      EXPECT_EQ(first.array(array), other.array(array)) << strategy << ", array " << array;
  }
}

// DeepSpeed: loading without the optimizer's state left master weights as they were, and the first update undid the load.
TEST_F(TrainingReports, weights_that_are_loaded_alone_are_the_weights_that_are_trained) {
  Training trained(session, options("zero2"));
  for (int i = 0; i < 3; ++i) trained.step();
  // A checkpoint of weights alone, as an import makes it.
  ckpt::Snapshot all = train::snapshot(trained.engine(), trained.optimizer, trained.state, "{}");
  ckpt::Snapshot weights;
  for (const ckpt::TensorSpec& spec : all.tensors) {
    if (spec.path.starts_with("/model/")) weights.tensors.push_back(spec);
  }
  for (const ckpt::ConstExtent& extent : all.extents) {
    if (extent.tensor < weights.tensors.size()) weights.extents.push_back(extent);
  }
  const auto checkpoint = ckpt::save(world, weights, {folder.path() / "weights", Step(1), 0});

  EngineOptions bf16 = options("zero3");
  bf16.compute = at::kBFloat16;
  Training fresh(apart, bf16, 99);
  load(fresh, checkpoint);
  EXPECT_EQ(fresh.state.step, 0);
  EXPECT_EQ(fresh.master(), trained.master());
  // What the network computes with is what is trained.
  Network plain;
  const auto parameters = parameters_like(fresh.engine(), *plain);
  assign(parameters, fresh.master());
  plain->to(at::kBFloat16);
  fresh.engine().evaluate([&] { EXPECT_EQ(fresh.engaged.module->loss(1, 0).item<float>(), plain->loss(1, 0).item<float>()); });
}

// DeepSpeed: ranks raced for the same file when state on NVMe was saved.
TEST_F(TrainingReports, ranks_with_state_on_disk_save_together) {
  Training memory(session, options("zero3")), disk(session, offloaded(options("zero3")));
  for (int i = 0; i < 2; ++i) {
    memory.step();
    disk.step();
    const auto checkpoint = save(disk);
    Training loaded(session, offloaded(options("zero3")), 99);
    load(loaded, checkpoint);
    for (int array = 0; array <= 2; ++array) EXPECT_EQ(loaded.array(array), memory.array(array)) << "step " << i;
  }
}

// DeepSpeed: with offload the gradients of all micro-steps but the first were dropped, and the norm was too small.
TEST_F(TrainingReports, offload_keeps_the_gradients_of_every_micro_step) {
  for (const std::int64_t share : {1, 2, 4}) {
    Training memory(session, options("zero2", share));
    EngineOptions on_disk = options("zero2", share);
    on_disk.grad_on_disk = on_disk.state_on_disk = true;
    on_disk.disk.folder = folder.path();
    Training disk(session, on_disk);
    for (int i = 0; i < 2; ++i) {
      const StepSums expected = memory.step(), found = disk.step();
      EXPECT_GT(expected.square_norm, 0);
      EXPECT_EQ(found.square_norm, expected.square_norm) << share << " micro-batches a rank";
    }
  }
}

// FSDP: offload to the CPU changed the loss, or there was no convergence at all.
TEST_F(TrainingReports, offload_changes_no_loss_and_training_converges) {
  Training memory(session, options("zero3")), disk(apart, offloaded(options("zero3")));
  double first = 0, last = 0;
  for (int i = 0; i < 10; ++i) {
    // The same step again and again, so that it can be learned.
    memory.state.step = disk.state.step = 0;
    last = memory.step().loss;
    EXPECT_EQ(disk.step().loss, last) << "step " << i;
    if (i == 0) first = last;
  }
  EXPECT_LT(last, 0.8 * first);
}

// DeepSpeed: the fused step was wrong where it had several parameters and copies in half precision.
TEST_F(TrainingReports, a_step_over_many_tensors_with_narrow_copies_is_that_of_torch) {
  EngineOptions bf16 = options("zero2");
  bf16.compute = at::kBFloat16;
  Training training(session, bf16);
  Network plain;
  const auto parameters = parameters_like(training.engine(), *plain);
  assign(parameters, training.master());
  // As by default: neither norms nor biases nor scalars decay.
  std::vector<at::Tensor> matrices, others;
  for (const at::Tensor& parameter : parameters) (parameter.dim() > 1 ? matrices : others).push_back(parameter);
  const auto group = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).eps(1e-8).weight_decay(decay));
  };
  torch::optim::AdamW torch_optimizer({{matrices, group(0.01)}, {others, group(0)}}, torch::optim::AdamWOptions(0.01));
  for (int i = 1; i <= 3; ++i) {
    training.engine().accumulate(Step(i), [&](std::int64_t m) {
      return MicroBatchLoss{training.engaged.module->loss(i, m), NetworkImpl::kTargets};
    });
    const StepSums sums = training.engine().sums();
    const Values gradient = gradient_of(world, training.engine());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      at::Tensor parameter = parameters[p];
      parameter.mutable_grad() =
          torch::tensor(at::ArrayRef<float>(gradient[p])).view(parameter.sizes()) / static_cast<double>(sums.num_targets);
    }
    training.optimizer.update(training.engine(), sums,
                              {.number = i, .grad_scale = 1 / static_cast<double>(sums.num_targets)});
    training.engine().publish();
    torch_optimizer.step();
    const Values master = training.master();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor got = torch::tensor(at::ArrayRef<float>(master[p])).view(parameters[p].sizes());
      EXPECT_TRUE(torch::allclose(got, parameters[p], 1e-5, 1e-6)) << training.engine().parameters()[p]->name << ", step " << i;
    }
  }
}

// transformers: a loss that is normalised by tokens was wrong on several GPUs and with accumulation (a mean of means).
TEST_F(TrainingReports, the_mean_over_tokens_does_not_depend_on_how_micro_batches_are_dealt) {
  // Micro-batch m has m + 1 targets.
  constexpr std::int64_t kMicroBatches = 12;
  const auto loss_of = [](Network& network, std::int64_t m) {
    return MicroBatchLoss{network->loss(1, m) * static_cast<double>(m + 1) / 16, m + 1};
  };
  Network plain;
  double loss = 0, targets = 0;
  for (const char* strategy : {"ddp", "zero3"}) {
    EngineOptions some = options(strategy);
    some.num_micro_batches = kMicroBatches;
    Engaged<Network> engaged(session, some);
    if (loss == 0) {
      assign(parameters_like(engaged.engine, *plain), master_of(world, engaged.engine));
      for (std::int64_t m = 0; m < kMicroBatches; ++m) {
        const MicroBatchLoss one = loss_of(plain, m);
        loss += one.loss.item<double>();
        targets += static_cast<double>(one.num_targets);
        one.loss.backward();
      }
    }
    engaged.engine.accumulate(Step(1), [&](std::int64_t m) { return loss_of(engaged.module, m); });
    const StepSums sums = engaged.engine.sums();
    EXPECT_NEAR(sums.loss / static_cast<double>(sums.num_targets), loss / targets, 1e-6 * loss / targets);
    const Values gradient = gradient_of(world, engaged.engine);
    const auto parameters = parameters_like(engaged.engine, *plain);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (!parameters[p].grad().defined()) continue;
      const at::Tensor got = torch::tensor(at::ArrayRef<float>(gradient[p])).view(parameters[p].sizes());
      EXPECT_TRUE(torch::allclose(got, parameters[p].grad(), 1e-4, 1e-5)) << engaged.engine.parameters()[p]->name;
    }
  }
}

// transformers: the loss that was shown grew with the number of accumulated micro-batches.
TEST_F(TrainingReports, the_loss_does_not_grow_with_accumulation) {
  std::map<std::int64_t, double> mean;
  for (const std::int64_t share : {1, 8}) {
    Engaged<Network> engaged(session, options("ddp", share));
    engaged.engine.accumulate(Step(1), [&](std::int64_t) {
      return MicroBatchLoss{engaged.module->loss(1, 0), NetworkImpl::kTargets};  // always the same words
    });
    const StepSums sums = engaged.engine.sums();
    mean[share] = sums.loss / static_cast<double>(sums.num_targets);
  }
  EXPECT_NEAR(mean[8], mean[1], 1e-6 * mean[1]);
}

// accelerate: a short last group of micro-batches was divided by the full number and took too small a step.
TEST_F(TrainingReports, a_short_last_group_is_divided_by_what_it_holds) {
  EngineOptions some = options("zero2");
  some.num_micro_batches = 12;
  Training usual(session, some);
  some.num_micro_batches = 3;
  if (ranks > 3) GTEST_SKIP() << "three micro-batches for at most three ranks";
  Training only(session, some);
  const StepSums part = usual.step(3), whole = only.step();
  EXPECT_EQ(part.num_targets, 3 * NetworkImpl::kTargets);
  EXPECT_NEAR(part.loss, whole.loss, 1e-6 * whole.loss);
  const Values left = usual.master(), right = only.master();
  for (std::size_t p = 0; p < left.size(); ++p) {
    for (std::size_t i = 0; i < left[p].size(); ++i) ASSERT_NEAR(left[p][i], right[p][i], 1e-3);
  }
}

struct OneNumberImpl : nn::Module {
  OneNumberImpl() { weight = register_parameter("weight", torch::ones({8})); }
  at::Tensor weight;
};
TORCH_MODULE(OneNumber);

// DeepSpeed: gradients in bf16 were added in bf16, where what is small beside the sum is lost.
TEST_F(TrainingReports, small_gradients_in_bf16_are_not_lost_beside_large_ones) {
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3", "hsdp"}) {
    EngineOptions some = options(strategy);
    some.compute = at::kBFloat16;
    some.num_micro_batches = 64 * ranks;
    Engaged<OneNumber> engaged(apart, some);
    engaged.engine.accumulate(Step(1), [&](std::int64_t m) {
      // One of 256, all others of 1, which bf16 cannot add to 256.
      return MicroBatchLoss{engaged.module->weight.sum() * (m == 0 ? 256 : 1), 1};
    });
    engaged.engine.sums();
    const Values gradient = gradient_of(world, engaged.engine);
    for (const float value : gradient[0])
      EXPECT_EQ(value, static_cast<float>(256 + 64 * ranks - 1)) << strategy;
  }
}

// DeepSpeed: stage 0 in bf16 divided gradients by a loss scale for fp16 and never zeroed them.
TEST_F(TrainingReports, ddp_in_bf16_starts_every_step_from_zero_and_scales_nothing) {
  EngineOptions some = options("ddp");
  some.compute = at::kBFloat16;
  Engaged<Network> engaged(session, some);
  std::vector<Values> gradients;
  for (int i = 0; i < 2; ++i) {
    engaged.engine.accumulate(Step(1), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
    });
    engaged.engine.sums();
    gradients.push_back(gradient_of(world, engaged.engine));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  Network plain;
  const auto parameters = parameters_like(engaged.engine, *plain);
  assign(parameters, master_of(world, engaged.engine));
  for (std::int64_t m = 0; m < some.num_micro_batches; ++m) plain->loss(1, m).backward();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (!parameters[p].grad().defined()) continue;
    const at::Tensor got = torch::tensor(at::ArrayRef<float>(gradients[0][p])).view(parameters[p].sizes());
    const double scale = (got * parameters[p].grad()).sum().item<double>() / parameters[p].grad().square().sum().item<double>();
    EXPECT_NEAR(scale, 1, 0.05) << engaged.engine.parameters()[p]->name;
  }
}

// accelerate: trainable weights that came in fp16 failed much later, at the first unscaling or clipping.
TEST_F(TrainingReports, weights_that_come_in_fp16_are_trained_in_fp32) {
  Network network;
  network->to(at::kHalf);
  parallel::EagerValues values;
  EngineOptions some = options("zero3");
  some.compute = at::kHalf;
  Engine engine(session, *network, values, some);
  optim::Optimizer optimizer({.lr = 1e-5, .weight_decay = 0, .clip_norm = 1});
  optimizer.attach(engine, world);
  const Values before = master_of(world, engine);
  for (int i = 1; i <= 3; ++i) {
    engine.accumulate(Step(i), [&](std::int64_t m) { return MicroBatchLoss{network->loss(i, m) * 8, NetworkImpl::kTargets}; });
    const StepSums sums = engine.sums();
    EXPECT_EQ(sums.non_finite, "");
    optimizer.update(engine, sums, {.number = i, .grad_scale = 1 / (8.0 * static_cast<double>(sums.num_targets))});
    engine.publish();
  }
  // Steps of 1e-5 on weights of 0.1 are below what fp16 can hold: only master weights in fp32 move by them.
  const Values after = master_of(world, engine);
  std::size_t moved = 0, all = 0;
  for (std::size_t p = 0; p < after.size(); ++p) {
    if (engine.parameters()[p]->name.starts_with("never")) continue;
    for (std::size_t i = 0; i < after[p].size(); ++i, ++all) moved += after[p][i] != before[p][i] ? 1U : 0U;
  }
  EXPECT_GT(static_cast<double>(moved), 0.5 * static_cast<double>(all));
}

}  // namespace
}  // namespace trireme::testing
