// AdamW through the engine against LibTorch's own, from the same gradients on.
#include "trireme/optim/adamw.hpp"

#include "comm/session.hpp"
#include "parallel/engine_world.hpp"
#include "parallel/kokkos.hpp"
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace trireme::optim {
namespace {

using namespace trireme::testing;

const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

TEST(ClipCoefficient, is_that_of_clip_grad_norm) {
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_EQ(clip_coefficient(4, 1), 1 / (4 + 1e-6));
  EXPECT_LT(clip_coefficient(1, 1), 1) << "torch divides by norm + 1e-6, also at the bound";
  EXPECT_EQ(clip_coefficient(1e9, 0), 1) << "0 is no bound";
  EXPECT_EQ(clip_coefficient(0, 2), 1);
}

// strategy, decay_all
class AdamWOver : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(AdamWOver, the_engine_is_torchs_own) {
  const auto& [strategy, decay_all] = GetParam();
  comm::Session session(nullptr, nullptr, session_options());
  comm::Communicator& world = session.world();
  const std::int64_t micro_batches = world.size();
  Engaged<Network> engaged(session, {strategy, "auto", at::kFloat, micro_batches});
  parallel::Engine& engine = engaged.engine;

  Network plain;
  const auto parameters = parameters_like(engine, *plain);
  assign(parameters, master_of(world, engine));
  const AdamWOptions ours{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-7, .weight_decay = 0.3, .decay_all = decay_all};
  std::vector<at::Tensor> decayed;
  std::vector<at::Tensor> not_decayed;
  for (const at::Tensor& parameter : parameters) {
    (decay_all || parameter.dim() >= 2 ? decayed : not_decayed).push_back(parameter);
  }
  torch::optim::AdamWOptions with(1e-3);
  with.betas({0.8, 0.95}).eps(1e-7).weight_decay(0.3);
  torch::optim::AdamWOptions without = with;
  without.weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<torch::optim::AdamWOptions>(with));
  if (!not_decayed.empty()) {
    groups.emplace_back(not_decayed, std::make_unique<torch::optim::AdamWOptions>(without));
  }
  torch::optim::AdamW theirs(groups, with);

  const double scale = 1.0 / static_cast<double>(micro_batches * NetworkImpl::kTargets);
  for (std::int64_t step = 1; step <= 5; ++step) {
    const double lr = 1e-3 * static_cast<double>(step);
    engine.accumulate(Step(step), [&](std::int64_t m) {
      return parallel::MicroBatchLoss{engaged.module->loss(step, m), NetworkImpl::kTargets};
    });
    const auto sums = engine.sums();
    const double clip = clip_coefficient(std::sqrt(sums.square_norm) * scale, 0.5);
    // The same gradients: this compares optimizers, not products of matrices.
    const Values gradient = gradient_of(world, engine);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      at::Tensor grad = torch::empty(parameters[p].sizes());
      std::copy(gradient[p].begin(), gradient[p].end(), grad.data_ptr<float>());
      parameters[p].mutable_grad() = grad * (scale * clip);
    }
    for (auto& group : theirs.param_groups()) group.options().set_lr(lr);
    theirs.step();
    adamw(engine, ours, lr, step, scale * clip);
    engine.publish();

    const Values master = master_of(world, engine);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor got = torch::tensor(master[p]);
      const at::Tensor expected = parameters[p].detach().flatten();
      const double error = (got - expected).abs().max().item<double>();
      EXPECT_LE(error, 1e-6 * expected.abs().max().item<double>())
          << engine.parameters()[p]->name << " at step " << step;
    }
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(each, AdamWOver,
                         ::testing::Combine(::testing::Values("ddp", "zero3"), ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "_decays_all" : "_spares_vectors");
                         });

struct PartlyFrozenImpl : nn::Module {
  PartlyFrozenImpl() {
    frozen = register_module("frozen", nn::Linear(8, 8));
    free = register_module("free", nn::Linear(8, 1));
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  nn::Linear frozen{nullptr};
  nn::Linear free{nullptr};
};
TORCH_MODULE(PartlyFrozen);

// As with torch.optim, which passes over parameters without a gradient: a frozen weight neither moves nor decays.
TEST(AdamW, leaves_frozen_parameters_alone) {
  for (const char* strategy : {"ddp", "zero3"}) {
    comm::Session session(nullptr, nullptr, session_options());
    comm::Communicator& world = session.world();
    Engaged<PartlyFrozen> engaged(session, {strategy, "auto", at::kFloat, world.size()});
    parallel::Engine& engine = engaged.engine;
    const Values before = master_of(world, engine);
    engine.accumulate(Step(1), [&](std::int64_t) {
      const auto x = engaged.module->frozen->forward(torch::ones({2, 8}));
      return parallel::MicroBatchLoss{engaged.module->free->forward(x).sum(), 2};
    });
    engine.sums();
    adamw(engine, {}, 0.1, 1, 1);
    engine.publish();
    const Values after = master_of(world, engine);
    for (std::size_t p = 0; p < before.size(); ++p) {
      const std::string& name = engine.parameters()[p]->name;
      EXPECT_EQ(before[p] == after[p], name.starts_with("frozen")) << strategy << ": " << name;
    }
  }
}

}  // namespace
}  // namespace trireme::optim
