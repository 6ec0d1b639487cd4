// Sums of gradients on five to eight ranks over one to four nodes, uneven ones too, for parameters of sizes that nothing
// divides and of fewer elements than there are ranks.
#include "trireme/parallel/engine.hpp"

#include "comm/session.hpp"
#include "engine_world.hpp"
#include "kokkos.hpp"
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <tuple>

namespace trireme::parallel {
namespace {

using namespace trireme::testing;

const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

struct SmallImpl : nn::Module {
  explicit SmallImpl(std::int64_t size) { weight = register_parameter("weight", torch::rand({size})); }
  at::Tensor weight;
};
TORCH_MODULE(Small);

struct OddSizesImpl : nn::Module {
  OddSizesImpl() {
    parts = register_module("parts", nn::ModuleList());
    for (const std::int64_t size : {1, 3, 8191, 8193, 20011}) parts->push_back(Small(size));
  }
  // Of which every gradient is known: sin(m + i) for element i of micro-batch m.
  at::Tensor loss(std::int64_t m) {
    at::Tensor sum = torch::zeros({});
    for (const auto& part : *parts) {
      const at::Tensor& weight = part->as<SmallImpl>()->weight;
      sum = sum + (weight * wave(m, weight.numel()).to(weight.scalar_type())).sum().to(at::kFloat);
    }
    return sum;
  }
  static at::Tensor wave(std::int64_t m, std::int64_t size) {
    return torch::sin(torch::arange(size, at::kFloat) + static_cast<double>(m));
  }
  nn::ModuleList parts{nullptr};
};
TORCH_MODULE(OddSizes);

// strategy, ranks a node, units, whether sums travel in bf16
class Reductions : public ::testing::TestWithParam<std::tuple<const char*, int, const char*, bool>> {};

TEST_P(Reductions, are_the_sums_of_what_every_rank_computed) {
  const auto& [strategy, per_node, units, narrow] = GetParam();
  comm::Session session(nullptr, nullptr, session_options(per_node));
  comm::Communicator& world = session.world();
  const int ranks = world.size();
  if (session.topology().num_nodes > 4) GTEST_SKIP() << "more than four nodes";
  EngineOptions options;
  options.strategy = strategy;
  options.compute = at::kFloat;
  options.num_micro_batches = 2 * ranks;
  options.units.policy = units;
  options.reduce = narrow ? at::kBFloat16 : at::kFloat;
  if (options.strategy == "hsdp") options.shard_size = ranks % 4 == 0 ? 4 : ranks % 3 == 0 ? 3 : ranks;
  Engaged<OddSizes> engaged(session, options);
  for (std::int64_t step = 0; step < 2; ++step) {
    engaged.engine.accumulate(Step(step), [&](std::int64_t m) { return MicroBatchLoss{engaged.module->loss(m + step), 1}; });
    EXPECT_EQ(engaged.engine.sums().num_targets, 2 * ranks);
    const Values gradient = gradient_of(world, engaged.engine);
    for (const auto& found : gradient) {
      at::Tensor expected = torch::zeros({std::ssize(found)}, at::kDouble);
      for (std::int64_t m = 0; m < 2 * ranks; ++m) expected += OddSizesImpl::wave(m + step, std::ssize(found)).to(at::kDouble);
      const at::Tensor off = (torch::tensor(at::ArrayRef<float>(found)).to(at::kDouble) - expected).abs().max();
      EXPECT_LT(off.item<double>(), narrow ? 0.02 * ranks : 1e-5) << found.size() << " elements";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(each, Reductions,
                         ::testing::Combine(::testing::Values("ddp", "zero1", "zero2", "zero3", "hsdp"),
                                            ::testing::Values(0, 2, 3, 4), ::testing::Values("auto", "none"),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_nodes_of_" + std::to_string(std::get<1>(test.param)) +
                                  "_units_" + std::get<2>(test.param) + (std::get<3>(test.param) ? "_bf16" : "_fp32");
                         });

}  // namespace
}  // namespace trireme::parallel
