// Modules that nobody wrote with sharding in mind, on several ranks and groups of ranks that count as nodes: buffers that
// forward changes, TorchScript, parameters that are frozen, ignored, unused or kept in fp32, and steps of any length.
#include "trireme/base/error.hpp"
#include "trireme/parallel/engine.hpp"

#include "comm/session.hpp"
#include "engine_world.hpp"
#include "kokkos.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::parallel {
namespace {

using namespace trireme::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

EngineOptions options_for(const std::string& strategy, std::int64_t micro_batches, int ranks) {
  EngineOptions options;
  options.strategy = strategy;
  options.compute = at::kFloat;
  options.num_micro_batches = micro_batches;
  if (strategy == "hsdp") options.shard_size = ranks % 2 == 0 ? 2 : ranks;
  return options;
}

// strategy, ranks a node
class AnyModule : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  comm::Session session{nullptr, nullptr, session_options(std::get<1>(GetParam()))};
  comm::Communicator& world = session.world();
  std::string strategy = std::get<0>(GetParam());
  int ranks = world.size();

  EngineOptions options(std::int64_t micro_batches) const { return options_for(strategy, micro_batches, ranks); }
};

at::Tensor input(std::int64_t step, std::int64_t m, std::int64_t width) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step * 1000 + m));
  return torch::randn({6, width}, generator, at::TensorOptions().dtype(at::kFloat));
}

// ---- buffers ----

struct NormedImpl : nn::Module {
  NormedImpl() {
    norm = register_module("norm", nn::BatchNorm1d(8));
    out = register_module("out", nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return out->forward(norm->forward(x)).square().sum(); }
  nn::BatchNorm1d norm{nullptr};
  nn::Linear out{nullptr};
};
TORCH_MODULE(Normed);

TEST_P(AnyModule, buffers_that_forward_changes_do_not_depend_on_who_computed_what) {
  constexpr std::int64_t kMicroBatches = 12;
  Engaged<Normed> engaged(session, options(kMicroBatches));
  // What one process makes of the rule: every micro-batch starts from the step's buffers, the step moves them by the mean.
  Normed alone;
  for (std::int64_t step = 1; step <= 3; ++step) {
    engaged.engine.accumulate(Step(step), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->forward(input(step, m, 8)), 6};
    });
    engaged.engine.sums();
    const at::Tensor mean = alone->norm->running_mean.clone(), var = alone->norm->running_var.clone();
    const auto count = alone->norm->num_batches_tracked.item<std::int64_t>();
    at::Tensor mean_sum = torch::zeros({8}, at::kDouble), var_sum = torch::zeros({8}, at::kDouble);
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      const at::NoGradGuard no_grad;
      alone->norm->running_mean.copy_(mean);
      alone->norm->running_var.copy_(var);
      alone->norm->forward(input(step, m, 8));
      mean_sum += alone->norm->running_mean.to(at::kDouble) - mean.to(at::kDouble);
      var_sum += alone->norm->running_var.to(at::kDouble) - var.to(at::kDouble);
    }
    const at::NoGradGuard no_grad;
    alone->norm->running_mean.copy_((mean.to(at::kDouble) + mean_sum / kMicroBatches).to(at::kFloat));
    alone->norm->running_var.copy_((var.to(at::kDouble) + var_sum / kMicroBatches).to(at::kFloat));
    EXPECT_TRUE(torch::equal(engaged.module->norm->running_mean, alone->norm->running_mean)) << "step " << step;
    EXPECT_TRUE(torch::equal(engaged.module->norm->running_var, alone->norm->running_var)) << "step " << step;
    EXPECT_EQ(engaged.module->norm->num_batches_tracked.item<std::int64_t>(), count + kMicroBatches);
    alone->norm->num_batches_tracked.fill_(count + kMicroBatches);
  }
}

// ---- TorchScript ----

torch::jit::Module scripted_block() {
  torch::jit::Module block("Block");
  block.register_parameter("weight", (torch::randn({16, 16}) * 0.2).requires_grad_(true), false);
  block.define("def forward(self, x):\n    return x + torch.tanh(x @ self.weight)\n");
  return block;
}

torch::jit::Module scripted() {
  torch::manual_seed(5);
  torch::jit::Module root("Root");
  root.register_module("first", scripted_block());
  root.register_module("second", scripted_block());
  root.define(
      "def forward(self, x):\n"
      "    for i in range(3):\n"
      "        x = self.first.forward(x)\n"
      "    if bool(x.sum() > 0):\n"
      "        x = x * 2\n"
      "    return self.second.forward(x).square().sum()\n");
  return root;
}

TEST_P(AnyModule, torchscript_trains_like_itself_alone) {
  const std::int64_t micro_batches = ranks == 3 ? 6 : 4;
  torch::jit::Module alone = scripted();
  torch::jit::Module module = scripted();
  EagerValues values;
  Engine engine(session, tree_of(module), values, options(micro_batches));
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : alone.named_parameters()) parameters[item.name] = item.value;
  // Several steps: the interpreter specialises after the first runs.
  for (std::int64_t step = 1; step <= 4; ++step) {
    double expected = 0;
    for (auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      const at::Tensor loss = alone.forward({input(step, m, 16)}).toTensor();
      expected += loss.item<double>();
      loss.backward();
    }
    engine.accumulate(Step(step), [&](std::int64_t m) {
      return MicroBatchLoss{module.forward({input(step, m, 16)}).toTensor(), 6};
    });
    const StepSums sums = engine.sums();
    EXPECT_NEAR(sums.loss / expected, 1, 1e-6);
    const Values gradient = gradient_of(world, engine);
    for (std::size_t p = 0; p < gradient.size(); ++p) {
      const at::Tensor& grad = parameters.at(engine.parameters()[p]->name).grad();
      const at::Tensor got = torch::from_blob(const_cast<float*>(gradient[p].data()), grad.sizes(), at::kFloat);
      EXPECT_TRUE(torch::allclose(got, grad, 1e-4, 1e-5)) << engine.parameters()[p]->name << " at step " << step;
    }
  }
}

// ---- frozen, ignored, unused, fp32 ----

TEST_P(AnyModule, frozen_parameters_have_no_moments_and_stay) {
  EngineOptions some = options(12);
  some.units.frozen = {"^blocks\\.[12]\\.", "embed"};
  Engaged<Network> engaged(session, some);
  const Values before = master_of(world, engaged.engine);
  std::set<std::string> trained;
  for (const StatePiece& piece : engaged.engine.state(false)) {
    const Slot& slot = *engaged.engine.parameters()[piece.parameter];
    EXPECT_EQ(piece.moments[0] != nullptr, slot.trains) << slot.name;
  }
  engaged.engine.accumulate(Step(1), [&](std::int64_t m) {
    return MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
  });
  engaged.engine.sums();
  engaged.engine.for_each_update([&](const UpdatePiece& piece) {
    trained.insert(piece.slot->name);
    for (float& value : piece.master) value += 1;
  });
  const Values after = master_of(world, engaged.engine);
  for (std::size_t p = 0; p < before.size(); ++p) {
    const Slot& slot = *engaged.engine.parameters()[p];
    const bool frozen = slot.name.starts_with("blocks.1.") || slot.name.starts_with("blocks.2.") || slot.name == "embed.weight";
    EXPECT_EQ(slot.trains, !frozen) << slot.name;
    EXPECT_EQ(before[p] == after[p], frozen) << slot.name;
  }
  for (const std::string& name : trained) EXPECT_FALSE(name.starts_with("blocks.1.")) << name;
}

TEST_P(AnyModule, parameters_that_no_micro_batch_uses_are_named_and_those_that_some_use_are_not) {
  Engaged<Network> engaged(session, options(12));
  engaged.engine.accumulate(Step(1), [&](std::int64_t m) {
    return MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
  });
  EXPECT_THAT(engaged.engine.sums().unused, ElementsAre("never.weight", "never.bias"));
}

TEST_P(AnyModule, ignored_modules_stay_whole_and_alike) {
  EngineOptions some = options(12);
  some.units.ignored = {"^mix$"};
  Engaged<Network> engaged(session, some);
  EXPECT_FALSE(engaged.module->mix->weight.requires_grad());
  for (std::int64_t step = 1; step <= 2; ++step) {
    engaged.engine.accumulate(Step(step), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->loss(step, 2 * m + 1), NetworkImpl::kTargets};
    });
    engaged.engine.sums();
    engaged.engine.for_each_update([](const UpdatePiece&) {}, Access::kRead);
    engaged.engine.publish();
    // Readable outside of any pass, unlike weights that come and go.
    EXPECT_NE(engaged.module->mix->weight.abs().sum().item<float>(), 0);
  }
  for (const Unit& unit : engaged.engine.layout().units()) EXPECT_EQ(unit.permanent, unit.name.find("(ignored)") != std::string::npos);
}

TEST_P(AnyModule, patterns_that_match_nothing_and_classes_that_are_not_there_are_refused) {
  const auto message = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions some = options(12);
    change(some);
    const Error error = error_of([&] { Engaged<Network>(session, some); });
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message;
  };
  EXPECT_THAT(message([](EngineOptions& o) { o.units.frozen = {"blcoks"}; }), HasSubstr("model.frozen: 'blcoks' matches no parameter"));
  EXPECT_THAT(message([](EngineOptions& o) { o.units.keep_fp32 = {"("}; }), HasSubstr("no regular expression"));
  EXPECT_THAT(message([](EngineOptions& o) { o.units.ignored = {"nothing"}; }), HasSubstr("matches no module"));
  EXPECT_THAT(message([](EngineOptions& o) { o.units.policy = "Blok"; }), HasSubstr("no module of class 'Blok'"));
  EXPECT_THAT(message([](EngineOptions& o) { o.units.policy = "size:many"; }), HasSubstr("is no size"));
}

TEST_P(AnyModule, units_are_named_classes_with_or_without_impl) {
  for (const char* policy : {"Block", "BlockImpl", "Linear, Block"}) {
    EngineOptions some = options(12);
    some.units.policy = policy;
    Engaged<Network> engaged(session, some);
    int blocks = 0;
    for (const Unit& unit : engaged.engine.layout().units()) blocks += unit.name.starts_with("blocks.") && unit.name.size() == 8;
    EXPECT_EQ(blocks, 4) << policy;
  }
}

// ---- what user code must not do ----

TEST_P(AnyModule, weights_that_user_code_changes_or_moves_or_adds_are_named) {
  using Change = std::function<void(Network&)>;
  const auto error = [&](const Change& before, const Change& in_forward) {
    Engaged<Network> engaged(session, options(12));
    const auto step = [&] {
      engaged.engine.accumulate(Step(1), [&](std::int64_t m) {
        in_forward(engaged.module);
        return MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
      });
    };
    {
      const at::NoGradGuard no_grad;
      before(engaged.module);
    }
    const Error found = error_of(step);
    EXPECT_EQ(found.kind, ErrorKind::kConfig);
    world.barrier("the next one");
    return found.message;
  };
  const Change nothing = [](Network&) {};
  // A scalar is small enough to be present however weights come and go.
  const Change in_place = [](Network& network) {
    const at::NoGradGuard no_grad;
    network->gain.mul_(2);
  };
  EXPECT_THAT(error([](Network& network) { network->mix->weight.set_data(torch::zeros({96, 96, 3})); }, nothing),
              HasSubstr("parameter mix.weight was given other memory"));
  EXPECT_THAT(error([](Network& network) { network->register_module("late", nn::Linear(2, 7)); }, nothing),
              HasSubstr("a parameter of shape [7, 2] was registered after"));
  if (strategy != "zero3" && strategy != "hsdp") {
    EXPECT_THAT(error(in_place, nothing), HasSubstr("parameter gain was changed in place"));
    EXPECT_THAT(error(nothing, in_place), HasSubstr("parameter gain was changed in place"));
  }
}

TEST_P(AnyModule, a_step_in_pieces_names_them_too) {
  EngineOptions pieces = options(12);
  pieces.num_micro_batches = 2 * ranks;
  pieces.dealt = true;
  Engaged<Network> engaged(session, pieces);
  engaged.module->mix->weight.set_data(torch::zeros({96, 96, 3}));
  EXPECT_THAT(error_of([&] { engaged.engine.begin_step(Step(1)); }).message,
              HasSubstr("parameter mix.weight was given other memory"));
  world.barrier("all have seen it");
}

// ---- steps of any length ----

TEST_P(AnyModule, a_short_step_is_that_of_fewer_micro_batches_on_one_rank) {
  Engaged<Network> engaged(session, options(12));
  for (const std::int64_t number : {1, 3, 5, 8, 11}) {
    engaged.engine.accumulate(Step(number), [&](std::int64_t m) {
      EXPECT_LT(m, number);
      return MicroBatchLoss{engaged.module->loss(number, m), NetworkImpl::kTargets};
    }, number);
    const StepSums sums = engaged.engine.sums();
    EXPECT_EQ(sums.num_targets, number * NetworkImpl::kTargets) << "divided by the tokens that were there";
    const Values gradient = gradient_of(world, engaged.engine);
    Network plain;
    assign(parameters_like(engaged.engine, *plain), master_of(world, engaged.engine));
    double loss = 0;
    for (std::int64_t m = 0; m < number; ++m) {
      const at::Tensor one = plain->loss(number, m);
      loss += one.item<double>();
      one.backward();
    }
    EXPECT_NEAR(sums.loss / loss, 1, 1e-6);
    const auto parameters = parameters_like(engaged.engine, *plain);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor grad = parameters[p].grad().defined() ? parameters[p].grad() : torch::zeros(parameters[p].sizes());
      const at::Tensor got = torch::from_blob(const_cast<float*>(gradient[p].data()), grad.sizes(), at::kFloat);
      EXPECT_TRUE(torch::allclose(got, grad, 1e-4, 1e-5)) << engaged.engine.parameters()[p]->name << ", " << number;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(each, AnyModule,
                         ::testing::Combine(::testing::Values("ddp", "zero1", "zero2", "zero3", "hsdp"),
                                            ::testing::Values(0, 1)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + (std::get<1>(test.param) == 0 ? "_one_node" : "_nodes_of_1");
                         });

}  // namespace
}  // namespace trireme::parallel
