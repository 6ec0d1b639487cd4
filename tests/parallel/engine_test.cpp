// The engine on modules that know nothing of it, on several ranks and on groups of ranks that count as nodes: the same
// numbers as plain autograd, the memory that the design says, and errors with names.
#include "trireme/parallel/engine.hpp"

#include "trireme/base/error.hpp"
#include "trireme/parallel/plan.hpp"

#include "comm/session.hpp"
#include "engine_world.hpp"
#include "kokkos.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::parallel {
namespace {

using namespace trireme::testing;
using ::testing::HasSubstr;

const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

// Four micro-batches where that can be exact, six on three ranks, which cannot.
std::int64_t micro_batches_for(int ranks) { return ranks == 3 ? 6 : 4; }

// Losses and the summed gradient of a step by plain autograd in one process.
struct Plain {
  std::vector<double> losses;
  Values gradient;

  Plain(Network& network, const std::vector<at::Tensor>& parameters, std::int64_t step, std::int64_t micro_batches) {
    std::vector<Values> items;
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      network->zero_grad();
      const at::Tensor loss = network->loss(step, m);
      loss.backward();
      losses.push_back(loss.item<double>());
      items.push_back(gradients_in(parameters));
    }
    gradient = tree(items, 0, items.size());
  }
};

double largest(const std::vector<float>& values) {
  double result = 0;
  for (const float value : values) result = std::max(result, std::abs(static_cast<double>(value)));
  return result;
}

void expect_equal(const Engine& engine, const Values& got, const Values& expected) {
  ASSERT_EQ(got.size(), expected.size());
  const bool exact = engine.assignment().inexact.empty();
  for (std::size_t p = 0; p < got.size(); ++p) {
    const std::string& name = engine.parameters()[p]->name;
    ASSERT_EQ(got[p].size(), expected[p].size()) << name;
    if (exact) {
      EXPECT_TRUE(got[p] == expected[p]) << name << " differs in bits";
      continue;
    }
    const double bound = 1e-5 * largest(expected[p]);
    for (std::size_t i = 0; i < got[p].size(); ++i) ASSERT_NEAR(got[p][i], expected[p][i], bound) << name;
  }
}

double square_sum(const Values& values) {
  double sum = 0;
  for (const auto& parameter : values) {
    for (const float value : parameter) sum += static_cast<double>(value) * value;
  }
  return sum;
}

EngineOptions options_for(const std::string& strategy, at::ScalarType compute, std::int64_t micro_batches, int ranks) {
  EngineOptions options;
  options.strategy = strategy;
  options.compute = compute;
  options.num_micro_batches = micro_batches;
  if (strategy == "hsdp") options.shard_size = ranks % 2 == 0 ? 2 : ranks;
  return options;
}

// How ranks lie: so many a node, 0 for all on one, or each with a device of its own, whose streams work early or late.
constexpr int kEarlyDevices = -1;
constexpr int kLateDevices = -2;

int ranks_per_node(int where) { return std::max(where, 0); }

ComputeOn compute_on(int where) {
  if (where >= 0) return ComputeOn::kHost;
  return where == kEarlyDevices ? ComputeOn::kEarlyDevice : ComputeOn::kLateDevice;
}

std::string name_of_place(int where) {
  if (where >= 0) return where == 0 ? "one_node" : "nodes_of_" + std::to_string(where);
  return where == kEarlyDevices ? "early_devices" : "late_devices";
}

// strategy, compute type, how ranks lie
using Setting = std::tuple<const char*, at::ScalarType, int>;

class EngineOf : public ::testing::TestWithParam<Setting> {
 protected:
  EngineOf() { options.compute_on = compute_on(std::get<2>(GetParam())); }

  comm::Session session{nullptr, nullptr, session_options(ranks_per_node(std::get<2>(GetParam())))};
  comm::Communicator& world = session.world();
  at::ScalarType compute = std::get<1>(GetParam());
  std::int64_t micro_batches = micro_batches_for(world.size());
  EngineOptions options = options_for(std::get<0>(GetParam()), compute, micro_batches, world.size());
};

TEST_P(EngineOf, gives_the_numbers_of_plain_autograd) {
  Engaged<Network> engaged(session, options);
  Engine& engine = engaged.engine;
  Network plain;
  const auto parameters = parameters_like(engine, *plain);
  plain->to(compute);
  for (std::int64_t step = 1; step <= 3; ++step) {
    assign(parameters, master_of(world, engine));
    const Plain expected(plain, parameters, step, micro_batches);

    std::vector<std::int64_t> seen;
    engine.accumulate(Step(step), [&](std::int64_t m) {
      seen.push_back(m);
      const at::Tensor loss = engaged.module->loss(step, m);
      EXPECT_EQ(loss.item<double>(), expected.losses[static_cast<std::size_t>(m)]) << "micro-batch " << m;
      return MicroBatchLoss{loss, NetworkImpl::kTargets};
    });
    const StepSums sums = engine.sums();
    double loss = 0;
    for (const double part : expected.losses) loss += part;
    EXPECT_EQ(sums.loss, loss);
    EXPECT_EQ(sums.num_targets, micro_batches * NetworkImpl::kTargets);
    EXPECT_EQ(sums.non_finite, "");
    EXPECT_NEAR(sums.square_norm / square_sum(expected.gradient), 1, 1e-6);
    expect_equal(engine, gradient_of(world, engine), expected.gradient);
    if (HasFailure()) break;

    take_adamw_step(engine, world, {1e-2, step, 1.0 / static_cast<double>(sums.num_targets)});
    engine.publish();
  }
  // No rank's gradients hang about in the module.
  for (const at::Tensor& parameter : engaged.module->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

// Steps of 1, 3, 4 and 2 turns where 4 are foreseen, with a forward of an evaluation in between.
TEST_P(EngineOf, in_pieces_gives_the_numbers_of_plain_autograd) {
  const std::int64_t ranks = world.size();
  options.dealt = true;
  options.num_micro_batches = 4 * ranks;
  Engaged<Network> engaged(session, options);
  Engine& engine = engaged.engine;
  std::optional<ObserveOperators> observe;
  if (engine.observer() != nullptr) observe.emplace(*engine.observer());
  Network plain;
  const auto parameters = parameters_like(engine, *plain);
  plain->to(compute);
  std::int64_t step = 0;
  for (const std::int64_t turns : {1, 3, 4, 2}) {
    assign(parameters, master_of(world, engine));
    const Plain expected(plain, parameters, ++step, turns * ranks);
    engine.begin_step(Step(step));
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      engine.begin_micro_batch();
      const at::Tensor loss = engaged.module->loss(step, turn * ranks + world.rank().value);
      loss.backward();
      engine.end_micro_batch({loss, NetworkImpl::kTargets});
      const at::NoGradGuard no_grad;
      engine.begin_evaluation();
      engaged.module->loss(step, 0);
    }
    engine.end_step();
    const StepSums sums = engine.sums();
    EXPECT_EQ(sums.num_targets, turns * ranks * NetworkImpl::kTargets);
    expect_equal(engine, gradient_of(world, engine), expected.gradient);
    if (HasFailure()) break;
    take_adamw_step(engine, world, {1e-2, step, 1.0 / static_cast<double>(sums.num_targets)});
    engine.publish();
  }
}

TEST_P(EngineOf, in_pieces_leaves_out_what_does_not_count) {
  const std::int64_t ranks = world.size();
  options.dealt = true;
  options.num_micro_batches = 2 * ranks;
  Engaged<Network> engaged(session, options);
  Engine& engine = engaged.engine;
  std::optional<ObserveOperators> observe;
  if (engine.observer() != nullptr) observe.emplace(*engine.observer());
  Network plain;
  const auto parameters = parameters_like(engine, *plain);
  plain->to(compute);
  assign(parameters, master_of(world, engine));
  const Plain expected(plain, parameters, 1, ranks + 1);
  // What is discarded leaves no trace.
  for (const bool discarded : {true, false}) {
    engine.begin_step(Step(1));
    for (std::int64_t turn = 0; turn < 2; ++turn) {
      const bool counts = discarded || turn == 0 || world.is_root();
      engine.begin_micro_batch(counts);
      const at::Tensor loss =
          engaged.module->loss(discarded ? 7 : 1, counts ? turn * ranks + world.rank().value : 0);
      loss.backward();
      engine.end_micro_batch({loss, 1});
    }
    engine.end_step();
    if (discarded) engine.discard();
  }
  const StepSums sums = engine.sums();
  EXPECT_EQ(sums.num_targets, ranks + 1);
  expect_equal(engine, gradient_of(world, engine), expected.gradient);
}

TEST_P(EngineOf, publishes_every_update_to_all) {
  Engaged<Network> engaged(session, options);
  Engine& engine = engaged.engine;
  Network plain;
  const auto parameters = parameters_like(engine, *plain);
  plain->to(compute);
  for (std::int64_t step = 1; step <= 3; ++step) {
    engine.accumulate(Step(step), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->loss(step, m), NetworkImpl::kTargets};
    });
    engine.sums();
    take_adamw_step(engine, world, {1e-2, step, 1e-2});
    engine.publish();
    assign(parameters, master_of(world, engine));
    const at::NoGradGuard no_grad;
    engine.evaluate([&] {
      EXPECT_EQ(engaged.module->loss(9, 1).item<float>(), plain->loss(9, 1).item<float>()) << "step " << step;
    });
  }
}

TEST_P(EngineOf, state_of_owners_tiles_every_parameter_once) {
  Engaged<Network> engaged(session, options);
  const Values once = master_of(world, engaged.engine, /*owned=*/true);
  EXPECT_EQ(once, master_of(world, engaged.engine));
  std::int64_t held = 0;
  for (const StatePiece& piece : engaged.engine.state(false)) {
    held += piece.count;
    EXPECT_NE(piece.moments[0], nullptr);
    EXPECT_NE(piece.moments[1], nullptr);
  }
  if (options.strategy == "ddp") { EXPECT_EQ(held, engaged.engine.layout().num_parameters()); }
}

TEST_P(EngineOf, keeps_as_many_moments_as_it_is_told_and_of_that_type) {
  for (const int number : {0, 1, 3}) {
    EngineOptions some = options;
    some.num_moments = number;
    some.moments = number == 1 ? at::kBFloat16 : at::kFloat;
    Engaged<Network> engaged(session, some);
    Engine& engine = engaged.engine;
    const std::int64_t size = some.moments == at::kBFloat16 ? 2 : 4;
    EXPECT_EQ(engine.memory().moments.value, number * size * (engine.memory().master.value / 4));
    // Every element has its own bytes in each moment, and no other piece writes them.
    const auto mark = [&](std::size_t parameter, std::int64_t element, int m) {
      return static_cast<std::byte>(parameter * 7 + static_cast<std::size_t>(element) * 3 +
                                    static_cast<std::size_t>(m));
    };
    for (const StatePiece& piece : engine.state(false)) {
      for (int m = 0; m < kMaxMoments; ++m) {
        std::byte* const at = piece.moments[static_cast<std::size_t>(m)];
        ASSERT_EQ(at != nullptr, m < number);
        if (at == nullptr) continue;
        for (std::int64_t i = 0; i < piece.count * size; ++i)
          at[i] = mark(piece.parameter, piece.begin + i / size, m);
      }
    }
    std::size_t wrong = 0;
    engine.accumulate(Step(1), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
    });
    engine.for_each_update([&](const UpdatePiece& piece) {
      for (int m = 0; m < number; ++m) {
        const std::byte* const at = piece.moments[static_cast<std::size_t>(m)];
        for (std::int64_t i = 0; i < std::ssize(piece.grad) * size; ++i) {
          wrong += at[i] != mark(piece.parameter, piece.begin + i / size, m) ? 1U : 0U;
        }
      }
    });
    EXPECT_EQ(wrong, 0U);
  }
}

// The key of stochastic rounding: it may not depend on who holds an element.
TEST_P(EngineOf, numbers_elements_alike_on_any_ranks) {
  Engaged<Network> engaged(session, options);
  Engine& engine = engaged.engine;
  engine.accumulate(Step(1), [&](std::int64_t m) {
    return MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
  });
  std::vector<std::uint64_t> first;
  for (const Unit& unit : engine.layout().units()) {
    for (const Slot& slot : unit.slots) {
      first.push_back(static_cast<std::uint64_t>(unit.first_block * kBlock + slot.offset));
    }
  }
  std::size_t pieces = 0;
  engine.for_each_update([&](const UpdatePiece& piece) {
    ++pieces;
    EXPECT_EQ(piece.element, first.at(piece.parameter) + static_cast<std::uint64_t>(piece.begin));
  });
  EXPECT_GT(pieces, 0U);
}

TEST_P(EngineOf, initial_values_do_not_depend_on_ranks_or_strategy) {
  // Of a lone process, before any engine touches them.
  Values expected;
  {
    Network network{nullptr};
    DeferredModule deferred(3, [&] {
      network = Network();
      return network.ptr();
    });
    Engaged<Network> engaged(session, options);
    const auto named = network->named_parameters();
    for (const Slot* slot : engaged.engine.parameters()) {
      deferred.fill(named[slot->name], slot->name, 0, expected.emplace_back(static_cast<std::size_t>(slot->size)));
    }
    EXPECT_EQ(master_of(world, engaged.engine), expected);
  }
}

TEST_P(EngineOf, weights_follow_state_that_was_written_from_outside) {
  Engaged<Network> engaged(session, options);
  Engine& engine = engaged.engine;
  for (const StatePiece& piece : engine.state(false)) {
    for (std::int64_t i = 0; i < piece.count; ++i) {
      piece.master[i] = std::sin(static_cast<float>(piece.begin + i) * 0.7F + static_cast<float>(piece.parameter)) * 0.1F;
    }
  }
  engine.refresh_work();
  Network plain;
  assign(parameters_like(engine, *plain), master_of(world, engine));
  plain->to(compute);
  const at::NoGradGuard no_grad;
  engine.evaluate([&] { EXPECT_EQ(engaged.module->loss(1, 0).item<float>(), plain->loss(1, 0).item<float>()); });
}

// The plan of a machine like this one.
// A rank with a device is a node of its own.
RankPlan planned(const Engine& engine, comm::Session& session, const EngineOptions& options, int where) {
  const comm::Topology& topology = session.topology();
  const int ranks = topology.first_rank.back();
  const Rank first(topology.first_rank[static_cast<std::size_t>(topology.node)]);
  const bool alone = where < 0;
  return plan_rank(engine.layout().units(), options, {ranks, where <= 0 ? ranks : where},
                   alone ? session.world().rank() : first);
}

// Of the first rank of this node; within a page a buffer.
void expect_as_planned(const Engine& engine, comm::Session& session, const EngineOptions& options, int where) {
  if (where >= 0 && session.node().local_rank() != 0) return;
  const MemoryUse use = engine.memory();
  const MemoryUse plan = planned(engine, session, options, where).memory;
  const auto near = [](Bytes is, Bytes should, const char* what) {
    EXPECT_NEAR(static_cast<double>(is.value), static_cast<double>(should.value), 4096) << what;
  };
  near(use.work, plan.work, "work");
  near(use.grad, plan.grad, "grad");
  near(use.master, plan.master, "master");
  near(use.moments, plan.moments, "moments");
  near(use.transient, plan.transient, "transient");
  near(use.disk, plan.disk, "disk");
}

TEST_P(EngineOf, uses_what_the_plan_says) {
  Engaged<Network> engaged(session, options);
  expect_as_planned(engaged.engine, session, options, std::get<2>(GetParam()));
  EngineOptions other = options;
  other.num_micro_batches = 3 * options.num_micro_batches;
  other.reshard_after_forward = false;
  other.num_moments = 3;
  other.moments = at::kBFloat16;
  other.units.policy = "none";
  Engaged<Network> second(session, other);
  expect_as_planned(second.engine, session, other, std::get<2>(GetParam()));
}

// Each node's partial sum is rounded once on its way; on one node nothing travels.
TEST_P(EngineOf, sums_that_travel_in_bf16_are_near_those_in_fp32) {
  EngineOptions narrow = options;
  narrow.reduce = at::kBFloat16;
  Engaged<Network> exact(session, options);
  Engaged<Network> rounded(session, narrow);
  expect_as_planned(rounded.engine, session, narrow, std::get<2>(GetParam()));
  std::vector<Values> gradients;
  for (Engaged<Network>* engaged : {&exact, &rounded}) {
    engaged->engine.accumulate(Step(1), [&](std::int64_t m) {
      return MicroBatchLoss{engaged->module->loss(1, m), NetworkImpl::kTargets};
    });
    engaged->engine.sums();
    gradients.push_back(gradient_of(world, engaged->engine));
  }
  const bool travels = session.topology().num_nodes > 1 || (std::get<2>(GetParam()) < 0 && world.size() > 1);
  if (!travels) {
    EXPECT_EQ(gradients[0], gradients[1]);
  }
  // What forward and backward in bf16 give is in bf16 already, until two of them are added.
  if (travels && options.compute == at::kFloat) {
    EXPECT_NE(gradients[0], gradients[1]);
  }
  EXPECT_EQ(rounded.engine.assignment().inexact.empty(),
            exact.engine.assignment().inexact.empty() && !travels);
  for (std::size_t p = 0; p < gradients[0].size(); ++p) {
    const double bound = 0.02 * largest(gradients[0][p]) + 1e-6;
    for (std::size_t i = 0; i < gradients[0][p].size(); ++i)
      ASSERT_NEAR(gradients[0][p][i], gradients[1][p][i], bound);
  }
}

TEST_P(EngineOf, notes_of_one_rank_reach_all) {
  Engaged<Network> engaged(session, options);
  const bool last = world.rank().value == world.size() - 1;
  const auto step = [&](RankNote note) {
    engaged.engine.accumulate(Step(1), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
    });
    return engaged.engine.sums(note);
  };
  const StepSums stopping = step({last, Bytes(last ? 1000 : 10)});
  EXPECT_TRUE(stopping.stop);
  EXPECT_EQ(stopping.peak_resident, Bytes(1000));
  EXPECT_FALSE(step({}).stop);
}

TEST_P(EngineOf, names_the_first_parameter_whose_gradient_is_not_finite) {
  Engaged<Network> engaged(session, options);
  Engine& engine = engaged.engine;
  const auto poison = [&](const at::Tensor& parameter, float by) { return parameter.flatten()[7] * by; };
  for (const float by : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    engine.accumulate(Step(1), [&](std::int64_t m) {
      // In one micro-batch only, and in two parameters: the first of them in unit order is named, on all ranks.
      const float factor = m == micro_batches - 1 ? by : 0;
      const at::Tensor loss = engaged.module->loss(1, m) +
                              poison(engaged.module->blocks[2]->as<BlockImpl>()->down->weight, factor) +
                              poison(engaged.module->blocks[1]->as<BlockImpl>()->up->weight, factor);
      return MicroBatchLoss{loss, NetworkImpl::kTargets};
    });
    EXPECT_EQ(engine.sums().non_finite, "blocks.1.up.weight");
  }
  // Nothing of it is left in the next step.
  engine.accumulate(Step(2), [&](std::int64_t m) {
    return MicroBatchLoss{engaged.module->loss(2, m), NetworkImpl::kTargets};
  });
  EXPECT_EQ(engine.sums().non_finite, "");
}

TEST_P(EngineOf, refuses_a_loss_that_is_not_one_number) {
  Engaged<Network> engaged(session, options);
  const Error error = error_of([&] {
    engaged.engine.accumulate(Step(1), [&](std::int64_t) {
      return MicroBatchLoss{engaged.module->gain * torch::ones({2}), 2};
    });
  });
  EXPECT_EQ(error.kind, ErrorKind::kConfig);
  EXPECT_THAT(error.message, HasSubstr("not a single number"));
  world.barrier("all refused");
}

struct SparseImpl : nn::Module {
  SparseImpl() { words = register_module("words", nn::Embedding(nn::EmbeddingOptions(50, 4).sparse(true))); }
  nn::Embedding words{nullptr};
};
TORCH_MODULE(Sparse);

TEST_P(EngineOf, refuses_a_sparse_gradient_by_name) {
  if (compute == at::kBFloat16) GTEST_SKIP() << "the type makes no difference";
  Engaged<Sparse> engaged(session, options);
  const Error error = error_of([&] {
    engaged.engine.accumulate(Step(1), [&](std::int64_t) {
      return MicroBatchLoss{engaged.module->words->forward(torch::tensor({1, 2})).sum(), 2};
    });
  });
  EXPECT_EQ(error.kind, ErrorKind::kConfig);
  EXPECT_THAT(error.message, HasSubstr("words.weight has a sparse gradient"));
  world.barrier("all refused");
}

std::string name_of(const ::testing::TestParamInfo<Setting>& test) {
  const auto& [strategy, compute, where] = test.param;
  return std::string(strategy) + (compute == at::kFloat ? "_fp32_" : "_bf16_") + name_of_place(where);
}

// Nodes of three are uneven on four ranks, nodes of two on three.
std::vector<Setting> settings() {
  std::vector<Setting> result;
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3", "hsdp"}) {
    for (const int where : {0, 1, 2, 3, kEarlyDevices})
      result.emplace_back(strategy, at::kFloat, where);
    for (const int where : {0, 1, 2, 3, kLateDevices})
      result.emplace_back(strategy, at::kBFloat16, where);
  }
  return result;
}
INSTANTIATE_TEST_SUITE_P(each, EngineOf, ::testing::ValuesIn(settings()), name_of);

// ---- state on disk -------------------------------------------------------------------------------------------------

// What lives on disk: weights, gradients, state.
struct OnDisk {
  bool work, grad, state;
};
const std::vector<OnDisk> kOnDisk = {{true, false, false}, {false, true, false}, {false, false, true}, {true, true, true}};

// strategy, index into kOnDisk, how ranks lie
class DiskOf : public ::testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(DiskOf, changes_no_bit) {
  const auto& [strategy, which, where] = GetParam();
  const OnDisk& on_disk = kOnDisk[static_cast<std::size_t>(which)];
  const parallel::Strategy& row = parallel::strategy(strategy);
  comm::Session session(nullptr, nullptr, session_options(ranks_per_node(where)));
  comm::Communicator& world = session.world();
  EngineOptions options = options_for(strategy, at::kBFloat16, 3 * micro_batches_for(world.size()), world.size());
  options.compute_on = compute_on(where);
  EngineOptions with = options;
  with.work_on_disk = on_disk.work;
  with.grad_on_disk = on_disk.grad;
  with.state_on_disk = on_disk.state;
  with.disk.folder = std::filesystem::temp_directory_path();
  if ((on_disk.work && row.work == Placement::kReplicated) || (on_disk.grad && row.grad == Placement::kReplicated)) {
    const Error error = error_of([&] { Engaged<Network>(session, with); });
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_THAT(error.message, HasSubstr("nvme needs shards"));
    return;
  }
  Engaged<Network> memory(session, options);
  Engaged<Network> disk(session, with);
  const auto step = [&](Engaged<Network>& engaged, std::int64_t number) {
    engaged.engine.accumulate(Step(number), [&](std::int64_t m) {
      return MicroBatchLoss{engaged.module->loss(number, m), NetworkImpl::kTargets};
    });
    const StepSums sums = engaged.engine.sums();
    take_adamw_step(engaged.engine, world, {1e-2, number, 1e-2});
    engaged.engine.publish();
    return std::pair(sums.loss, sums.square_norm);
  };
  for (std::int64_t number = 1; number <= 3; ++number) EXPECT_EQ(step(memory, number), step(disk, number));
  EXPECT_GT(disk.engine.memory().disk.value, 0);
  expect_as_planned(disk.engine, session, with, where);
  EXPECT_GT(disk.engine.take_tier_stats().read.value, 0);
  EXPECT_EQ(memory.engine.memory().disk.value, 0);
  // Every array of every piece, read and written in another order than it lies in.
  const auto expected = memory.engine.state(false);
  const auto pieces = disk.engine.state(false);
  ASSERT_EQ(pieces.size(), expected.size());
  for (const bool change : {false, true}) {
    for (std::size_t i = pieces.size(); i-- > 0;) {
      const auto count = static_cast<std::size_t>(pieces[i].count);
      const bool trains = disk.engine.parameters()[pieces[i].parameter]->trains;
      for (int array = 0; array <= (trains ? 2 : 0); ++array) {
        std::vector<float> values(count);
        std::vector<float> others(count);
        disk.engine.read_state(pieces[i], array, 0, std::as_writable_bytes(std::span(values)));
        memory.engine.read_state(expected[i], array, 0, std::as_writable_bytes(std::span(others)));
        ASSERT_EQ(values, others) << disk.engine.parameters()[pieces[i].parameter]->name << ", array " << array;
        for (float& value : values) value += 1;
        if (change) disk.engine.write_state(pieces[i], array, 0, std::as_bytes(std::span(values)));
        if (change) memory.engine.write_state(expected[i], array, 0, std::as_bytes(std::span(values)));
      }
    }
    memory.engine.refresh_work();
    disk.engine.refresh_work();
    EXPECT_EQ(step(memory, 9), step(disk, 9));
  }
}

INSTANTIATE_TEST_SUITE_P(each, DiskOf,
                         ::testing::Combine(::testing::Values("ddp", "zero1", "zero2", "zero3", "hsdp"),
                                            ::testing::Range(0, 4), ::testing::Values(0, 1, 2, kEarlyDevices)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param)) +
                                  "_" + name_of_place(std::get<2>(test.param));
                         });

// ---- memory --------------------------------------------------------------------------------------------------------

// Blocks of whole norm blocks, without padding: 2.4 million parameters.
struct WideImpl : nn::Module {
  WideImpl() {
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 9; ++i) {
      layers->push_back(nn::Sequential(nn::Linear(nn::LinearOptions(512, 512).bias(false)), nn::Tanh()));
    }
  }
  at::Tensor loss() {
    at::Tensor x = torch::ones({4, 512}, layers->parameters()[0].scalar_type());
    for (const auto& layer : *layers) x = layer->as<nn::SequentialImpl>()->forward(x);
    return x.to(at::kFloat).sum();
  }
  nn::ModuleList layers{nullptr};
};
TORCH_MODULE(Wide);

// What smaps_rollup calls Pss, without mapped files: the share of libraries changes with every process of this machine that
// starts or ends. 0 where the kernel does not tell. MPI's windows are shared mappings, of whatever file.
std::int64_t own_memory() {
  malloc_trim(0);  // what tests before have freed would be used again unseen
  std::ifstream maps("/proc/self/smaps");
  std::int64_t bytes = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, permissions, offset, device, inode, path;
    words >> range >> permissions;
    if (range.find('-') != std::string::npos && range.back() != ':') {  // the head of a mapping
      words >> offset >> device >> inode >> path;
      counts = inode == "0" || permissions.back() == 's';
    } else if (range == "Pss:" && counts) {
      bytes += std::stoll(permissions) * 1024;
    }
  }
  return bytes;
}

// strategy, ranks a node, micro-batches a rank
class MemoryOf : public ::testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(MemoryOf, is_what_the_design_says_and_what_the_system_counts) {
  const auto& [strategy, ranks_per_node, per_rank] = GetParam();
  comm::Session session(nullptr, nullptr, session_options(ranks_per_node));
  comm::Communicator& world = session.world();
  const auto everywhere = [&](std::int64_t mine) {
    std::int64_t sum = 0;
    for (const std::int64_t theirs : comm::all_gather_values(world, mine, "bytes")) sum += theirs;
    return sum;
  };
  // A plain step first: what it adds to the process (libraries, the allocator's pools) is not the engine's.
  Wide plain;
  plain->to(at::kBFloat16);
  for (int i = 0; i < 2; ++i) plain->loss().backward();
  plain->zero_grad();

  if (own_memory() == 0) GTEST_SKIP() << "no /proc/self/smaps here";
  const std::int64_t before = everywhere(own_memory());
  Engaged<Wide> engaged(session, options_for(strategy, at::kBFloat16, world.size() * per_rank, world.size()));
  Engine& engine = engaged.engine;
  const auto step = [&] {
    engine.accumulate(Step(1), [&](std::int64_t) { return MicroBatchLoss{engaged.module->loss(), 1}; });
    engine.sums();
    take_adamw_step(engine, world, {1e-3, 1, 1});
    engine.publish();
  };
  step();
  step();
  const std::int64_t after = everywhere(own_memory());

  const MemoryUse use = engine.memory();
  const Layout& layout = engine.layout();
  ASSERT_EQ(layout.num_elements(), layout.num_parameters()) << "no padding blurs the formula";
  const parallel::Strategy& row = parallel::strategy(strategy);
  const bool at_step = row.reduce_at == ReduceAt::kStep;
  const std::int64_t all = layout.num_elements();
  const std::int64_t held = layout.shard_elements(world.rank());
  EXPECT_NEAR(static_cast<double>(held), static_cast<double>(all) / layout.mesh().shard_size,
              0.05 * static_cast<double>(held));
  EXPECT_EQ(use.master.value, 4 * held);
  EXPECT_EQ(use.moments.value, 8 * held);
  // Weights: two bytes, once a node; sharded by zero3 and hsdp where their groups span nodes.
  const bool gathers = row.work == Placement::kFlatShard && ranks_per_node == 1 && layout.mesh().shard_size > 1;
  const bool may_gather = row.work == Placement::kFlatShard && session.topology().num_nodes > 1;
  if (gathers || !may_gather) {
    EXPECT_NEAR(static_cast<double>(use.work.value),
                gathers ? 2.0 * static_cast<double>(held) : 2.0 * static_cast<double>(all) / session.node().size(), 4096);
  }
  // Gradients: fp32, of the strategy's size, one for each level of the counters over turns and over rounds.
  const Assignment& assignment = engine.assignment();
  const std::int64_t owned = layout.owned_elements(world.rank());
  const std::int64_t over_rounds =
      assignment.num_rounds() > 1 ? 4 * owned * counter_levels(assignment.num_rounds()) : 0;
  const std::int64_t grad = 4 * (at_step ? all : held) * counter_levels(std::ssize(assignment.rounds[0])) + over_rounds;
  EXPECT_NEAR(static_cast<double>(use.grad.value), static_cast<double>(grad), 4096);

  const auto told = static_cast<double>(everywhere(use.total().value));
  const auto counted = static_cast<double>(after - before);
  EXPECT_NEAR(counted / told, 1, 0.05) << "counted " << counted / (1 << 20) << " MiB, told " << told / (1 << 20)
                                       << " MiB over all ranks";
}

INSTANTIATE_TEST_SUITE_P(each, MemoryOf,
                         ::testing::Combine(::testing::Values("ddp", "zero1", "zero2", "zero3", "hsdp"),
                                            ::testing::Values(0, 1, 2),
                                            ::testing::Values(1, 4)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_nodes_of_" +
                                  std::to_string(std::get<1>(test.param)) + "_with_" +
                                  std::to_string(std::get<2>(test.param)) + "_micro_batches";
                         });

// ---- what is refused -----------------------------------------------------------------------------------------------

// A model whose blocks' order follows the data; the blocks are alike, so that nothing but their names tells them apart.
// DESIGN section 3: a rank that touches units in another order is named.
class EngineOrder : public ::testing::TestWithParam<int> {};

TEST_P(EngineOrder, of_units_that_differs_between_nodes_is_named) {
  comm::Session session(nullptr, nullptr, session_options(ranks_per_node(GetParam()), 3));
  comm::Communicator& world = session.world();
  if (world.size() != 2) GTEST_SKIP() << "a test for two ranks";
  EngineOptions options = options_for("zero3", at::kFloat, 2, 2);
  options.compute_on = compute_on(GetParam());
  Engaged<Wide> engaged(session, options);
  std::string message;
  try {
    engaged.engine.accumulate(Step(1), [&](std::int64_t m) {
      const auto block = [&](std::size_t i) { return engaged.module->layers[i]->as<nn::SequentialImpl>(); };
      const at::Tensor x = m == 0 ? block(1)->forward(block(0)->forward(torch::ones({2, 512})))
                                  : block(0)->forward(block(1)->forward(torch::ones({2, 512})));
      return MicroBatchLoss{x.sum(), 2};
    });
    engaged.engine.sums();
    message = "nothing was thrown: weights of one unit were taken for another's";
  } catch (const Error& error) {
    message = error.message;
  }
  EXPECT_THAT(message, HasSubstr("order"));
  world.barrier("both have ended");
}

INSTANTIATE_TEST_SUITE_P(each, EngineOrder, ::testing::Values(1, kEarlyDevices, kLateDevices),
                         [](const auto& test) { return name_of_place(test.param); });

}  // namespace
}  // namespace trireme::parallel
