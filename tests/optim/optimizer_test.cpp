// Optimizers through the engine, on one rank and several: against the results of torch, transformers
// and lion-pytorch, and AdamW against LibTorch's own on a network.
#include "trireme/optim/optimizer.hpp"

#include "support/safetensors.hpp"
#include "trireme/base/error.hpp"

#include "comm/session.hpp"
#include "parallel/engine_world.hpp"
#include "parallel/kokkos.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
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
  Engaged<Network> engaged(session, {strategy, {}, at::kFloat, micro_batches});
  parallel::Engine& engine = engaged.engine;

  Network plain;
  const auto parameters = parameters_like(engine, *plain);
  assign(parameters, master_of(world, engine));
  Optimizer ours({.lr = 1e-3,
                  .betas = {0.8, 0.95},
                  .eps = 1e-7,
                  .weight_decay = 0.3,
                  .decay_all = decay_all,
                  .clip_norm = 0.5});
  ours.attach(engine, world);
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
    ours.update(engine, sums,
                {.number = step, .grad_scale = scale, .rate = [&](double) { return lr; }});
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
    Engaged<PartlyFrozen> engaged(session, {strategy, {}, at::kFloat, world.size()});
    parallel::Engine& engine = engaged.engine;
    const Values before = master_of(world, engine);
    engine.accumulate(Step(1), [&](std::int64_t) {
      const auto x = engaged.module->frozen->forward(torch::ones({2, 8}));
      return parallel::MicroBatchLoss{engaged.module->free->forward(x).sum(), 2};
    });
    Optimizer optimizer({.lr = 0.1});
    optimizer.attach(engine, world);
    optimizer.update(engine, engine.sums(), {});
    engine.publish();
    const Values after = master_of(world, engine);
    for (std::size_t p = 0; p < before.size(); ++p) {
      const std::string& name = engine.parameters()[p]->name;
      EXPECT_EQ(before[p] == after[p], name.starts_with("frozen")) << strategy << ": " << name;
    }
  }
}

using nlohmann::json;
using support::GoldenTensors;
using ::testing::HasSubstr;

const std::filesystem::path kData = std::filesystem::path(TRIREME_TEST_DATA) / "kernels/data/optim";
const std::vector<std::string> kNames{"p1", "p7", "p129", "p4099", "m7x19", "t3x5x11"};

const GoldenTensors& inputs() {
  static const GoldenTensors tensors = support::read_safetensors(kData / "inputs.safetensors");
  return tensors;
}

at::Tensor tensor_of(const support::GoldenTensor& golden) {
  return torch::tensor(golden.values).reshape(golden.shape);
}

// The parameters of the golden cases, and a loss whose gradient is given.
struct GoldenModuleImpl : nn::Module {
  GoldenModuleImpl() {
    for (const std::string& name : kNames) {
      register_parameter(name, torch::zeros(inputs().at("param." + name).shape));
    }
  }
  at::Tensor loss(std::int64_t step, bool counts) {
    at::Tensor sum = torch::zeros({});
    const auto parameters = named_parameters();
    for (const std::string& name : kNames) {
      const at::Tensor grad = tensor_of(inputs().at("grad." + std::to_string(step) + "." + name));
      sum = sum + (parameters[name] * grad * (counts ? 1.0 : 0.0)).sum();
    }
    return sum;
  }
};
TORCH_MODULE(GoldenModule);

json all_cases() { return support::read_json(kData / "optimizers.json"); }

std::vector<std::string> names_of_cases() {
  const json all = all_cases();
  std::vector<std::string> names;
  for (const json& one : all["cases"]) {
    if (!one.contains("missing")) names.push_back(one["name"]);  // the engine has gradients of all
  }
  return names;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(c));
  return text;
}

OptimizerOptions options_of(const json& golden) {
  const json& o = golden["options"];
  OptimizerOptions options;
  options.type = lower(golden["optimizer"]);
  options.lr = o.contains("lr") ? o["lr"].get<double>() : 1.0;
  options.decay_all = true;
  options.weight_decay = o.value("weight_decay", options.type == "adamw" ? 0.01 : 0.0);
  options.betas = {0.9, options.type == "lion" ? 0.99 : 0.999};
  if (o.contains("betas")) options.betas = {o["betas"][0], o["betas"][1]};
  options.eps = o.value("eps", options.type == "adagrad" ? 1e-10 : 1e-8);
  options.amsgrad = o.value("amsgrad", false);
  options.maximize = o.value("maximize", false);
  options.momentum = o.value("momentum", o.value("beta1", 0.0));
  options.dampening = o.value("dampening", 0.0);
  options.nesterov = o.value("nesterov", false);
  options.lr_decay = o.value("lr_decay", 0.0);
  options.initial_accumulator = o.value("initial_accumulator_value", 0.0);
  AdafactorOptions& a = options.adafactor;
  a.clip_threshold = o.value("clip_threshold", a.clip_threshold);
  a.decay_rate = o.value("decay_rate", a.decay_rate);
  a.scale_parameter = o.value("scale_parameter", a.scale_parameter);
  a.relative_step = o.value("relative_step", a.relative_step);
  a.warmup_init = o.value("warmup_init", a.warmup_init);
  for (const json& group : golden.value("groups", json::array())) {
    GroupRule& rule = options.groups.emplace_back();
    for (const json& member : group["params"]) {
      rule.match += (rule.match.empty() ? "^(" : "|") + member.get<std::string>();
    }
    rule.match += ")$";
    rule.weight_decay = group["weight_decay"].get<double>();
    if (group.contains("lr")) rule.lr_multiplier = group["lr"].get<double>() / options.lr;
  }
  return options;
}

// case, strategy
class GoldenOver : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {};

TEST_P(GoldenOver, the_engine_is_the_original) {
  const auto& [name, strategy] = GetParam();
  const json all = all_cases();
  json golden;
  for (const json& one : all["cases"]) {
    if (one["name"] == name) golden = one;
  }
  static const GoldenTensors results = support::read_safetensors(kData / "results.safetensors");

  comm::Session session(nullptr, nullptr, session_options());
  comm::Communicator& world = session.world();
  Optimizer optimizer(options_of(golden));
  parallel::EngineOptions engine_options{strategy, {}, at::kFloat, world.size()};
  optimizer.configure(engine_options);
  Engaged<GoldenModule> engaged(session, engine_options);
  parallel::Engine& engine = engaged.engine;
  for (const parallel::StatePiece& piece : engine.state(false)) {
    const auto& values = inputs().at("param." + engine.parameters()[piece.parameter]->name).values;
    std::copy_n(values.begin() + piece.begin, piece.count, piece.master);
  }
  engine.refresh_work();
  optimizer.attach(engine, world);
  for (std::int64_t step = 0; step < all["steps"].get<std::int64_t>(); ++step) {
    engine.accumulate(Step(step + 1), [&](std::int64_t m) {
      return parallel::MicroBatchLoss{engaged.module->loss(step, m == 0), 1};
    });
    UpdateStep update{.number = step + 1};
    if (golden.contains("lrs")) {
      const double lr = golden["lrs"][static_cast<std::size_t>(step)];
      update.rate = [lr](double) { return lr; };
    }
    optimizer.update(engine, engine.sums(), update);
    engine.publish();
  }
  const Values master = master_of(world, engine);
  const double tolerance = golden["spread"]["fp64_relative"];
  for (std::size_t p = 0; p < master.size(); ++p) {
    const std::string& parameter = engine.parameters()[p]->name;
    const auto& expected = results.at(name + ".param." + parameter).values;
    const std::size_t stride = parameter == "p4099" ? 16 : 1;
    ASSERT_EQ(expected.size(), (master[p].size() + stride - 1) / stride);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error = std::fabs(double{master[p][i * stride]} - expected[i]);
      ASSERT_LE(error, tolerance * (std::fabs(expected[i]) + 1e-3)) << parameter << " " << i;
    }
  }
  for (const ExtraTensor& extra : optimizer.extra_state()) {
    const std::string& parameter = engine.parameters()[extra.parameter]->name;
    const auto found = results.find(name + ".state." + extra.slot + "." + parameter);
    if (found == results.end()) continue;  // p4099
    EXPECT_EQ(found->second.shape, extra.shape) << parameter;
    for (std::size_t i = 0; i < extra.values.size(); ++i) {
      ASSERT_NEAR(extra.values[i] / found->second.values[i], 1, 1e-6) << extra.slot << parameter;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Originals, GoldenOver,
                         ::testing::Combine(::testing::ValuesIn(names_of_cases()),
                                            ::testing::Values("ddp", "zero3")),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param);
                         });

// Matrices that are cut between ranks, and across rows.
struct WideImpl : nn::Module {
  WideImpl() {
    register_parameter("matrix", torch::zeros({301, 203}));
    register_parameter("batch", torch::zeros({3, 70, 111}));
    register_parameter("vector", torch::zeros({20'011}));
  }
};
TORCH_MODULE(Wide);

at::Tensor wide_values(const at::Tensor& like, std::int64_t key) {
  const at::Tensor index =
      torch::arange(like.numel(), at::kDouble) + static_cast<double>(key) * 0.37;
  // Rows and columns of very different size.
  const at::Tensor size = torch::exp(5 * torch::sin(index * 0.0041));
  return (torch::sin(index * 1.7) * size).reshape(like.sizes()).to(at::kFloat);
}

// transformers' Adafactor in double.
struct AdafactorInDouble {
  at::Tensor weight, row, col, mean;

  static at::Tensor rms(const at::Tensor& x) {
    return x.norm() / std::sqrt(static_cast<double>(x.numel()));
  }

  void step(const at::Tensor& grad, std::int64_t number, double lr, double beta1) {
    const double beta2 = 1 - std::pow(static_cast<double>(number), -0.8);
    const at::Tensor squares = grad * grad + 1e-30;
    at::Tensor update;
    if (grad.dim() >= 2) {
      if (!row.defined())
        row = torch::zeros_like(squares.mean(-1)), col = torch::zeros_like(squares.mean(-2));
      row = row * beta2 + squares.mean(-1) * (1 - beta2);
      col = col * beta2 + squares.mean(-2) * (1 - beta2);
      update = (row / row.mean(-1, true)).rsqrt().unsqueeze(-1) * col.unsqueeze(-2).rsqrt() * grad;
    } else {
      if (!col.defined()) col = torch::zeros_like(squares);
      col = col * beta2 + squares * (1 - beta2);
      update = col.rsqrt() * grad;
    }
    const double rate = lr * std::max(1e-3, rms(weight).item<double>());
    update = update / rms(update).clamp_min(1.0) * rate;
    if (!mean.defined()) mean = torch::zeros_like(update);
    mean = mean * beta1 + update * (1 - beta1);
    weight = weight - mean;
  }
};

TEST(Adafactor, follows_the_formula_where_ranks_cut_rows) {
  for (const char* strategy : {"ddp", "zero3"}) {
    comm::Session session(nullptr, nullptr, session_options());
    comm::Communicator& world = session.world();
    OptimizerOptions options{.type = "adafactor", .lr = 0.01, .weight_decay = 0, .momentum = 0.8};
    options.adafactor.relative_step = false;
    Optimizer optimizer(options);
    parallel::EngineOptions engine_options{strategy, {}, at::kFloat, world.size()};
    optimizer.configure(engine_options);
    Engaged<Wide> engaged(session, engine_options);
    parallel::Engine& engine = engaged.engine;
    std::vector<AdafactorInDouble> expected;
    for (const parallel::Slot* slot : engine.parameters()) {
      expected.push_back(
          {wide_values(torch::empty(slot->shape), 1).to(at::kDouble) * 1e-2, {}, {}, {}});
    }
    for (const parallel::StatePiece& piece : engine.state(false)) {
      const at::Tensor values = expected[piece.parameter].weight.to(at::kFloat).contiguous();
      std::copy_n(values.data_ptr<float>() + piece.begin, piece.count, piece.master);
    }
    engine.refresh_work();
    optimizer.attach(engine, world);
    for (std::int64_t number = 1; number <= 3; ++number) {
      engine.accumulate(Step(number), [&](std::int64_t m) {
        at::Tensor sum = torch::zeros({});
        for (const at::Tensor& p : engaged.module->parameters()) {
          sum = sum + (p * wide_values(p, number * 5) * (m == 0 ? 1.0 : 0.0)).sum();
        }
        return parallel::MicroBatchLoss{sum, 1};
      });
      optimizer.update(engine, engine.sums(), {.number = number});
      engine.publish();
      for (auto& one : expected) {
        one.step(wide_values(one.weight, number * 5).to(at::kDouble), number, 0.01, 0.8);
      }
    }
    const Values master = master_of(world, engine);
    for (std::size_t p = 0; p < expected.size(); ++p) {
      const at::Tensor got = torch::tensor(master[p]).to(at::kDouble);
      const double error = (got - expected[p].weight.flatten()).abs().max().item<double>();
      EXPECT_LE(error, 1e-6 * expected[p].weight.abs().max().item<double>())
          << engine.parameters()[p]->name;
    }
  }
}

std::string config_error(const OptimizerOptions& options) {
  try {
    Optimizer optimizer(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message;
  }
  return "accepted";
}

TEST(Optimizer, refuses_what_it_cannot_do) {
  EXPECT_THAT(config_error({.type = "adanw"}), HasSubstr("did you mean 'adamw'"));
  EXPECT_THAT(config_error({.type = "sgd", .nesterov = true}), HasSubstr("needs momentum"));
  EXPECT_THAT(config_error({.type = "adafactor", .maximize = true}), HasSubstr("only minimizes"));
  EXPECT_THAT(config_error({.betas = {0.9, 1.0}}), HasSubstr("[0, 1)"));
  EXPECT_THAT(config_error({.groups = {{.match = "(", .eps = 1e-6}}}),
              HasSubstr("no regular expression"));
  EXPECT_THAT(config_error({.groups = {{.match = "bias"}}}), HasSubstr("sets nothing"));
  EXPECT_THAT(config_error({.type = "sgd", .groups = {{.match = "bias", .betas = {{0.9, 0.9}}}}}),
              HasSubstr("optimizer.groups.0.betas: have no effect on sgd"));
  EXPECT_THAT(config_error({.type = "lion", .groups = {{.match = "bias", .eps = 1e-6}}}),
              HasSubstr("optimizer.groups.0.eps: has no effect on lion"));
}

// The gradient of everything is 1: 4 elements in the frozen-free part, of which "free.bias" is one.
TEST(Optimizer, clips_a_group_by_its_own_norm_and_the_rest_by_theirs) {
  comm::Session session(nullptr, nullptr, session_options());
  comm::Communicator& world = session.world();
  OptimizerOptions options{.type = "sgd", .lr = 1, .weight_decay = 0, .clip_norm = 3};
  options.groups = {{.match = "embed", .clip_norm = 0.5}};
  Optimizer optimizer(options);
  parallel::EngineOptions engine_options{"zero3", {}, at::kFloat, world.size()};
  optimizer.configure(engine_options);
  Engaged<Network> engaged(session, engine_options);
  parallel::Engine& engine = engaged.engine;
  optimizer.attach(engine, world);
  const Values before = master_of(world, engine);
  engine.accumulate(Step(1), [&](std::int64_t m) {
    return parallel::MicroBatchLoss{engaged.module->loss(1, m), NetworkImpl::kTargets};
  });
  const parallel::StepSums sums = engine.sums();
  ASSERT_EQ(sums.square_norms.size(), 2U);
  EXPECT_EQ(sums.square_norm, sums.square_norms[0] + sums.square_norms[1]);
  optimizer.update(engine, sums, {});
  const Values after = master_of(world, engine);
  double moved[2] = {};
  for (std::size_t p = 0; p < before.size(); ++p) {
    const bool embed = engine.parameters()[p]->name.find("embed") != std::string::npos;
    for (std::size_t i = 0; i < before[p].size(); ++i) {
      const double move = double{after[p][i]} - before[p][i];
      moved[embed ? 1 : 0] += move * move;
    }
  }
  EXPECT_GT(std::sqrt(sums.square_norms[0]), 3) << "or nothing is clipped";
  EXPECT_NEAR(std::sqrt(moved[0]), 3, 1e-4);
  EXPECT_NEAR(std::sqrt(moved[1]), 0.5, 1e-4);
}

}  // namespace
}  // namespace trireme::optim
