// Every setting of the engine with every other: strategy, precision, accumulation, offload, recomputation and kind of
// module, on 1 to 4 ranks as one node or as several. Losses and weights are those of plain autograd in one process, to the
// bit; three ranks, whose trees of sums have another shape, agree to a tolerance.
#include "trireme/kernels/convert.hpp"
#include "trireme/kernels/optimizers.hpp"
#include "trireme/model/language_model.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/recompute.hpp"

#include "comm/session.hpp"
#include "engine_world.hpp"
#include "kokkos.hpp"
#include "support/temp_dir.hpp"
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::parallel {
namespace {

using namespace trireme::testing;

const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

constexpr std::int64_t kSteps = 2;
constexpr double kRate = 0.01;
constexpr double kLossScale = 64;  // of fp16

// A module and what a micro-batch of it costs.
struct Subject {
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(std::int64_t step, std::int64_t m)> loss;
  std::int64_t targets = 0;  // of a micro-batch
};

Subject language_model(const std::string& type, bool recompute) {
  config::Model shape;
  shape.type = type;
  shape.layers = 2;
  shape.hidden = 32;
  shape.heads = 2;
  shape.context = 8;
  shape.vocab = 61;
  const auto model = model::make(shape);
  if (recompute) model->recompute_blocks(checkpoint);
  return {model, [model](std::int64_t step, std::int64_t m) {
            auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step * 1000 + m));
            const auto words_BT = torch::randint(0, 61, {2, 9}, generator, at::kLong);
            return model->loss_sum(words_BT.narrow(1, 0, 8).contiguous(), words_BT.narrow(1, 1, 8).contiguous());
          }, 16};
}

Subject odd_module(bool recompute) {
  Network network;
  network->recompute = recompute;
  return {network.ptr(), [network](std::int64_t step, std::int64_t m) mutable { return network->loss(step, m); },
          NetworkImpl::kTargets};
}

Subject make(const std::string& kind, bool recompute) {
  return kind == "odd" ? odd_module(recompute) : language_model(kind, recompute);
}

double loss_scale(at::ScalarType compute) { return compute == at::kHalf ? kLossScale : 1; }

// What training of one process without an engine gives: the sum of losses of each step, and the last weights.
struct Course {
  std::vector<double> losses;
  Values weights;
};

Course plain_course(const Subject& subject, const std::vector<at::Tensor>& parameters, Values weights,
                    at::ScalarType compute, std::int64_t micro_batches) {
  Course course;
  std::vector<std::vector<float>> means, squares;
  for (const auto& weight : weights) {
    means.emplace_back(weight.size());
    squares.emplace_back(weight.size());
  }
  subject.module->to(compute);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    assign(parameters, weights);
    std::vector<Values> items;
    double& total = course.losses.emplace_back(0);
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      subject.module->zero_grad();
      const at::Tensor loss = subject.loss(step, m) * loss_scale(compute);
      loss.backward();
      total += loss.item<double>();
      items.push_back(gradients_in(parameters));
    }
    const Values gradient = tree(items, 0, items.size());
    const kernels::AdamRule rule{.lr = kRate, .beta2 = 0.95, .step = step};
    const kernels::GradientTreatment treatment{
        .scale = static_cast<float>(1 / (static_cast<double>(micro_batches * subject.targets) * loss_scale(compute)))};
    for (std::size_t p = 0; p < weights.size(); ++p) {
      kernels::update(rule, treatment,
                      {.grad = gradient[p], .master = weights[p], .moments = {means[p].data(), squares[p].data()}});
    }
  }
  course.weights = std::move(weights);
  return course;
}

// kind, compute type, micro-batches a rank
using Matter = std::tuple<const char*, at::ScalarType, int>;

class Matrix : public ::testing::TestWithParam<Matter> {};

struct Way {
  std::string strategy;
  bool disk = false;
  bool recompute = false;
  int ranks_per_node = 0;

  std::string name() const {
    return strategy + (disk ? " nvme" : "") + (recompute ? " recompute" : "") + " nodes of " +
           std::to_string(ranks_per_node);
  }
};

// Each strategy with and without recomputation and the disk; the shape of nodes goes round.
std::vector<Way> ways() {
  std::vector<Way> result;
  int turn = 0;
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3", "hsdp"}) {
    for (const bool disk : {false, true}) {
      for (const bool recompute : {false, true}) result.push_back({strategy, disk, recompute, turn++ % 3});
    }
  }
  return result;
}

EngineOptions options_of(const Way& way, at::ScalarType compute, std::int64_t micro_batches, int ranks,
                         const std::filesystem::path& folder) {
  EngineOptions options;
  options.strategy = way.strategy;
  options.compute = compute;
  options.num_micro_batches = micro_batches;
  if (way.strategy == "hsdp") options.shard_size = ranks % 2 == 0 ? 2 : ranks;
  if (!way.disk) return options;
  const bool shards_weights = way.strategy == "zero3" || way.strategy == "hsdp";
  options.work_on_disk = shards_weights;
  options.grad_on_disk = shards_weights || way.strategy == "zero2";
  options.state_on_disk = true;
  options.disk.folder = folder;
  return options;
}

TEST_P(Matrix, gives_the_losses_and_weights_of_plain_autograd) {
  const auto& [kind, compute, share] = GetParam();
  std::map<std::int64_t, Course> expected;  // by number of micro-batches
  const TempDir folder;
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name());
    comm::Session session(nullptr, nullptr, session_options(way.ranks_per_node));
    comm::Communicator& world = session.world();
    const std::int64_t micro_batches = world.size() * share;
    Subject subject;
    DeferredModule deferred(3, [&, kind = kind] {
      subject = make(kind, way.recompute);
      return subject.module;
    });
    const EngineOptions options = options_of(way, compute, micro_batches, world.size(), folder.path());
    Engine engine(session, *subject.module, deferred, options);
    if (!expected.contains(micro_batches)) {
      const Subject plain = make(kind, false);
      expected[micro_batches] = plain_course(plain, parameters_like(engine, *plain.module), state_of(world, engine, 0),
                                             compute, micro_batches);
    }
    const Course& course = expected[micro_batches];
    const bool exact = engine.assignment().inexact.empty();
    EXPECT_TRUE(exact || world.size() == 3) << engine.assignment().inexact;
    optim::Optimizer optimizer({.lr = kRate, .betas = {0.9, 0.95}, .weight_decay = 0});
    optimizer.attach(engine, world);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      engine.accumulate(Step(step), [&, compute = compute](std::int64_t m) {
        return MicroBatchLoss{subject.loss(step, m) * loss_scale(compute), subject.targets};
      });
      const StepSums sums = engine.sums();
      const double loss = course.losses[static_cast<std::size_t>(step - 1)];
      if (exact) {
        EXPECT_EQ(sums.loss, loss) << "step " << step;
      } else {
        EXPECT_NEAR(sums.loss / loss, 1, compute == at::kFloat ? 1e-4 : 2e-2) << "step " << step;
      }
      optimizer.update(engine, sums,
                       {.number = step,
                        .grad_scale = 1 / (static_cast<double>(sums.num_targets) * loss_scale(compute))});
      engine.publish();
    }
    if (!exact) continue;
    const Values weights = state_of(world, engine, 0);
    for (std::size_t p = 0; p < weights.size(); ++p)
      EXPECT_TRUE(weights[p] == course.weights[p]) << engine.parameters()[p]->name << " differs in bits";
  }
}

INSTANTIATE_TEST_SUITE_P(each, Matrix,
                         ::testing::Combine(::testing::Values("gpt2", "llama", "odd"),
                                            ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Values(1, 2, 4)),
                         [](const auto& test) {
                           const auto compute = std::get<1>(test.param);
                           return std::string(std::get<0>(test.param)) +
                                  (compute == at::kFloat ? "_fp32" : compute == at::kHalf ? "_fp16" : "_bf16") +
                                  "_micro_batches_a_rank_" + std::to_string(std::get<2>(test.param));
                         });

}  // namespace
}  // namespace trireme::parallel
