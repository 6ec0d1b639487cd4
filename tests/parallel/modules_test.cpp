// What is asked of a user's module before any rank comes in: which units it has, and its initial values when it is
// constructed without its memory.
#include "trireme/parallel/deferred.hpp"
#include "trireme/parallel/units.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/kernels/initialise.hpp"
#include "trireme/memory/process.hpp"

#include "kokkos.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- units ---------------------------------------------------------------------------------------------------------

struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width = 4) {
    first = register_module("first", nn::Linear(width, width));
    second = register_module("second", nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x)); }
  nn::Linear first{nullptr};
  nn::Linear second{nullptr};
};
TORCH_MODULE(Block);

struct NetworkImpl : nn::Module {
  NetworkImpl() {
    embed = register_module("embed", nn::Embedding(10, 4));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
    head = register_module("head", nn::Linear(nn::LinearOptions(4, 10).bias(false)));
  }
  nn::Embedding embed{nullptr};
  nn::ModuleList blocks{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Network);

std::vector<std::vector<std::string>> names_of(const nn::Module& module) {
  std::vector<std::vector<std::string>> names;
  for (const UnitParameters& unit : find_units(tree_of(module), {})) names.push_back(unit.names);
  return names;
}

std::vector<std::string> units_of(const nn::Module& module) {
  std::vector<std::string> names;
  for (const UnitParameters& unit : find_units(tree_of(module), {})) names.push_back(unit.name);
  return names;
}

// Whatever the units, each parameter is in one of them once, under a name that the module gives it.
void expect_each_parameter_once(const nn::Module& module) {
  std::map<const c10::TensorImpl*, int> times;
  for (const UnitParameters& unit : find_units(tree_of(module), {})) {
    ASSERT_EQ(unit.names.size(), unit.parameters.size());
    ASSERT_FALSE(unit.parameters.empty());
    for (std::size_t i = 0; i < unit.names.size(); ++i) {
      ++times[unit.parameters[i].unsafeGetTensorImpl()];
      const at::Tensor* named = module.named_parameters().find(unit.names[i]);
      ASSERT_NE(named, nullptr) << unit.names[i];
      EXPECT_TRUE(named->is_same(unit.parameters[i])) << unit.names[i];
    }
  }
  std::map<const c10::TensorImpl*, int> expected;
  for (const at::Tensor& parameter : module.parameters()) expected[parameter.unsafeGetTensorImpl()] = 1;
  EXPECT_EQ(times, expected);
}

TEST(Units, are_repeated_blocks_and_what_lies_around_them) {
  const Network network;
  expect_each_parameter_once(*network);
  EXPECT_THAT(units_of(*network),
              ElementsAre("embed.weight", "blocks.0", "blocks.1", "blocks.2", "norm.weight"));
  EXPECT_THAT(names_of(*network)[1], ElementsAre("blocks.0.first.weight", "blocks.0.first.bias",
                                                 "blocks.0.second.weight", "blocks.0.second.bias"));
  EXPECT_THAT(names_of(*network)[4], ElementsAre("norm.weight", "norm.bias", "head.weight"));
}

TEST(Units, are_found_in_a_sequence) {
  const nn::Sequential sequence(nn::Linear(4, 4), Block(), Block(), nn::Linear(4, 4));
  expect_each_parameter_once(*sequence);
  EXPECT_THAT(units_of(*sequence), ElementsAre("0.weight", "1", "2", "3.weight"));
}

TEST(Units, are_found_in_nested_containers_and_are_the_outermost) {
  struct Stage : nn::Module {
    explicit Stage(int depth) {
      nn::ModuleList list;
      for (int i = 0; i < depth; ++i) list->push_back(Block());
      register_module("inner", list);
    }
  };
  struct Outer : nn::Module {
    Outer() {
      nn::ModuleList list;
      for (int i = 0; i < 2; ++i) list->push_back(std::make_shared<Stage>(3));
      register_module("stages", list);
      register_module("single", std::make_shared<Stage>(2));
    }
  };
  const Outer outer;
  expect_each_parameter_once(outer);
  EXPECT_THAT(units_of(outer), ElementsAre("stages.0", "stages.1", "single.inner.0", "single.inner.1"));
}

TEST(Units, of_a_module_without_blocks_are_one) {
  const nn::Sequential mlp(nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 4));
  expect_each_parameter_once(*mlp);
  EXPECT_EQ(units_of(*mlp).size(), 1U);
  const nn::Linear alone(3, 3);
  EXPECT_THAT(names_of(*alone), ElementsAre(ElementsAre("weight", "bias")));
}

TEST(Units, hold_a_tied_parameter_where_it_comes_first) {
  struct TiedHead : nn::Module {
    explicit TiedHead(const at::Tensor& shared) {
      register_parameter("weight", shared);
      register_parameter("bias", torch::zeros({10}));
    }
  };
  Network network;
  network->register_module("tied", std::make_shared<TiedHead>(network->embed->weight));
  expect_each_parameter_once(*network);
  EXPECT_THAT(names_of(*network)[0], ElementsAre("embed.weight"));
  EXPECT_THAT(names_of(*network)[4], ElementsAre("norm.weight", "norm.bias", "head.weight", "tied.bias"));
}

TEST(Units, hold_a_module_that_is_registered_twice_once) {
  Network network;
  network->register_module("again", network->head.ptr());
  network->register_module("block_again", network->blocks->ptr(1));
  expect_each_parameter_once(*network);
  EXPECT_EQ(units_of(*network).size(), 5U);

  nn::ModuleList same;
  const Block block;
  for (int i = 0; i < 3; ++i) same->push_back(block);
  expect_each_parameter_once(*same);
}

TEST(Units, of_unlike_blocks_are_not_made) {
  struct OtherImpl : BlockImpl {};
  nn::ModuleList list;
  list->push_back(Block());
  list->push_back(std::make_shared<OtherImpl>());
  expect_each_parameter_once(*list);
  EXPECT_EQ(units_of(*list).size(), 1U);
}

TEST(Units, need_a_parameter_and_floating_point) {
  const nn::ReLU relu;
  try {
    find_units(tree_of(*relu), {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_THAT(error.message, HasSubstr("no parameters"));
  }
  nn::Linear linear(2, 2);
  linear->register_parameter("counts", torch::zeros({3}, at::kLong), /*requires_grad=*/false);
  try {
    find_units(tree_of(*linear), {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    EXPECT_THAT(error.message, HasSubstr("counts"));
  }
}

// ---- deferred construction -----------------------------------------------------------------------------------------

using Factory = std::function<std::shared_ptr<nn::Module>()>;
using Values = std::map<std::string, std::vector<float>>;

std::vector<float> filled(DeferredModule& deferred, const std::string& name, const at::Tensor& parameter,
                          std::int64_t begin, std::int64_t end) {
  std::vector<float> out(static_cast<std::size_t>(end - begin), -777.0F);
  deferred.fill(parameter, name, begin, out);
  return out;
}

Values values_of(DeferredModule& deferred) {
  Values values;
  for (const auto& item : deferred.module()->named_parameters()) {
    values[item.key()] = filled(deferred, item.key(), item.value(), 0, item.value().numel());
  }
  return values;
}

Values values_of(std::uint64_t seed, const Factory& factory) {
  DeferredModule deferred(seed, factory);
  return values_of(deferred);
}

template <class Holder, class... Arguments>
Factory make(Arguments... arguments) {
  return [=] { return Holder(arguments...).ptr(); };
}

at::Tensor tensor_of(const std::vector<float>& values, at::IntArrayRef shape) {
  return torch::tensor(values).view(shape);
}

// What holds for any module: values follow from (seed, name, index) and nothing else.
void expect_values_of_seed_name_and_index(const Factory& factory, bool random = true) {
  torch::manual_seed(1);
  DeferredModule deferred(7, factory);
  const Values whole = values_of(deferred);
  // Any range, in any order.
  for (const auto& item : deferred.module()->named_parameters()) {
    const std::int64_t size = item.value().numel();
    const std::vector<float>& expected = whole.at(item.key());
    for (const auto& [begin, end] : {std::pair(size / 2, size), std::pair(size / 3, size / 2 + 1 > size ? size : size / 2 + 1),
                                     std::pair(std::int64_t{0}, size / 3), std::pair(size - 1, size)}) {
      EXPECT_EQ(filled(deferred, item.key(), item.value(), begin, end),
                std::vector<float>(expected.begin() + begin, expected.begin() + end))
          << item.key() << " from " << begin;
    }
  }
  // Whatever was drawn before, here or in another process.
  torch::manual_seed(2);
  torch::rand({17});
  EXPECT_EQ(values_of(7, factory), whole);
  if (random) { EXPECT_NE(values_of(8, factory), whole); }
}

struct Case {
  const char* name;
  Factory factory;
};

class Stock : public ::testing::TestWithParam<Case> {};

TEST_P(Stock, values_follow_from_seed_name_and_index) {
  const std::string name = GetParam().name;
  expect_values_of_seed_name_and_index(GetParam().factory, name != "layer_norm" && name != "batch_norm");
}

// Initial values are drawn otherwise than eagerly, but from the same distributions.
TEST_P(Stock, values_are_distributed_as_eager_ones) {
  torch::manual_seed(5);
  const Values deferred = values_of(5, GetParam().factory);
  const auto eager = GetParam().factory();
  for (const auto& item : eager->named_parameters()) {
    const at::Tensor expected = item.value().detach();
    const at::Tensor got = tensor_of(deferred.at(item.key()), expected.sizes());
    if (expected.numel() < 100) {
      EXPECT_LE(got.abs().max().item<float>(), expected.abs().max().item<float>() * 3 + 1e-6) << item.key();
      continue;
    }
    const double deviation = expected.std().item<double>();
    const double bound = 6 * deviation / std::sqrt(static_cast<double>(expected.numel())) + 1e-12;
    EXPECT_NEAR(got.std().item<double>(), deviation, bound) << item.key();
    EXPECT_NEAR(got.mean().item<double>(), expected.mean().item<double>(), bound) << item.key();
    EXPECT_NEAR(got.abs().max().item<double>(), expected.abs().max().item<double>(), 1.2 * deviation + 1e-12)
        << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(
    modules, Stock,
    ::testing::Values(
        Case{"linear", make<nn::Linear>(37, 53)}, Case{"embedding", make<nn::Embedding>(101, 16)},
        Case{"embedding_with_padding",
             [] { return nn::Embedding(nn::EmbeddingOptions(101, 16).padding_idx(3)).ptr(); }},
        Case{"layer_norm", [] { return nn::LayerNorm(nn::LayerNormOptions({300})).ptr(); }},
        Case{"batch_norm", make<nn::BatchNorm1d>(300)},
        Case{"conv2d", [] { return nn::Conv2d(nn::Conv2dOptions(8, 16, 3)).ptr(); }},
        Case{"attention", [] { return nn::MultiheadAttention(nn::MultiheadAttentionOptions(32, 4)).ptr(); }},
        Case{"lstm", [] { return nn::LSTM(nn::LSTMOptions(20, 24)).ptr(); }},
        Case{"transformer_layer",
             [] { return nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(32, 4)).ptr(); }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Deferred, padding_row_of_an_embedding_is_zero) {
  const Values values = values_of(1, [] { return nn::Embedding(nn::EmbeddingOptions(11, 16).padding_idx(3)).ptr(); });
  const at::Tensor weight = tensor_of(values.at("weight"), {11, 16});
  EXPECT_EQ(weight[3].abs().sum().item<float>(), 0.0F);
  EXPECT_NE(weight[2].abs().sum().item<float>(), 0.0F);
}

TEST(Deferred, buffers_have_their_values_at_once) {
  const DeferredModule deferred(1, make<nn::BatchNorm1d>(30));
  const auto buffers = deferred.module()->named_buffers();
  EXPECT_TRUE(buffers["running_mean"].equal(torch::zeros({30})));
  EXPECT_TRUE(buffers["running_var"].equal(torch::ones({30})));
  EXPECT_EQ(buffers["num_batches_tracked"].item<std::int64_t>(), 0);
}

TEST(Deferred, parameters_of_the_same_shape_differ_by_name) {
  const Values values = values_of(1, [] { return nn::Sequential(nn::Linear(9, 9), nn::Linear(9, 9)).ptr(); });
  EXPECT_NE(values.at("0.weight"), values.at("1.weight"));
  EXPECT_NE(values.at("0.bias"), values.at("1.bias"));
}

// A module whose one parameter `initialise` makes or changes.
Factory user_module(std::vector<std::int64_t> shape, std::function<void(at::Tensor&)> initialise) {
  struct User : nn::Module {};
  return [shape = std::move(shape), initialise = std::move(initialise)] {
    auto module = std::make_shared<User>();
    at::Tensor weight = torch::empty(shape);
    weight = module->register_parameter("weight", weight);
    const at::NoGradGuard no_grad;
    initialise(weight);
    return module;
  };
}

at::Tensor weight_of(std::uint64_t seed, const Factory& factory) {
  DeferredModule deferred(seed, factory);
  const at::Tensor& parameter = deferred.module()->named_parameters()["weight"];
  return tensor_of(filled(deferred, "weight", parameter, 0, parameter.numel()), parameter.sizes());
}

at::Tensor normal_of(std::uint64_t seed, at::IntArrayRef shape) {
  at::Tensor values = torch::empty(shape);
  kernels::fill_normal({values.data_ptr<float>(), static_cast<std::size_t>(values.numel())},
                       stream_key(seed, "weight"), 0, 0, 1);
  return values;
}

TEST(DeferredUser, in_place_arithmetic_follows_the_draw) {
  const Factory factory = user_module({20, 30}, [](at::Tensor& w) { w.normal_().mul_(0.5).add_(3); });
  expect_values_of_seed_name_and_index(factory);
  EXPECT_TRUE(weight_of(4, factory).equal(normal_of(4, {20, 30}).mul_(0.5).add_(3)));
}

TEST(DeferredUser, parts_can_be_drawn_and_filled) {
  const Factory factory = user_module({20, 30}, [](at::Tensor& w) {
    w.normal_();
    w.narrow(1, 5, 5).zero_();
    w[7].fill_(2);
  });
  expect_values_of_seed_name_and_index(factory);
  at::Tensor expected = normal_of(4, {20, 30});
  expected.narrow(1, 5, 5).zero_();
  expected[7].fill_(2);
  EXPECT_TRUE(weight_of(4, factory).equal(expected));
}

TEST(DeferredUser, last_of_two_draws_counts) {
  expect_values_of_seed_name_and_index(user_module({20, 30}, [](at::Tensor& w) { w.uniform_(5, 6).normal_(); }));
}

TEST(DeferredUser, random_tensors_may_be_registered_as_they_are) {
  struct User : nn::Module {
    User() { register_parameter("weight", torch::randn({20, 30}) * 0.02); }
  };
  expect_values_of_seed_name_and_index([] { return std::make_shared<User>(); });
}

TEST(DeferredUser, other_draws_follow_the_seed_too) {
  expect_values_of_seed_name_and_index(user_module({20, 30}, [](at::Tensor& w) { w.exponential_(2); }));
  expect_values_of_seed_name_and_index(user_module({20, 30}, [](at::Tensor& w) { w.bernoulli_(0.5); }));
  expect_values_of_seed_name_and_index(
      user_module({20, 30}, [](at::Tensor& w) { nn::init::kaiming_normal_(w); }));
}

// trunc_normal_ as everybody writes it: several operators over a whole parameter.
TEST(DeferredUser, truncated_normal_stays_in_its_bounds) {
  const Factory factory = user_module({50, 60}, [](at::Tensor& w) {
    w.uniform_(-0.9, 0.9);
    w.erfinv_();
    w.mul_(0.02 * std::sqrt(2.0));
    w.clamp_(-0.03, 0.03);
  });
  expect_values_of_seed_name_and_index(factory);
  const at::Tensor weight = weight_of(4, factory);
  EXPECT_LE(weight.abs().max().item<float>(), 0.03F);
  EXPECT_NEAR(weight.std().item<double>(), 0.0155, 0.002);
}

void expect_orthogonal(std::int64_t rows, std::int64_t columns, double gain) {
  const Factory factory =
      user_module({rows, columns}, [gain](at::Tensor& w) { nn::init::orthogonal_(w, gain); });
  const at::Tensor weight = weight_of(4, factory);
  const at::Tensor product = rows <= columns ? weight.mm(weight.t()) : weight.t().mm(weight);
  EXPECT_TRUE(product.allclose(torch::eye(std::min(rows, columns)) * gain * gain, 1e-4, 1e-4))
      << rows << " x " << columns << ", gain " << gain << ": " << product.diagonal().slice(0, 0, 3);
}

TEST(DeferredUser, orthogonal_initialisation_is_orthogonal) {
  expect_orthogonal(30, 20, 1);
  expect_orthogonal(30, 20, 2);
}

TEST(DeferredUser, orthogonal_initialisation_of_a_wide_matrix_is_orthogonal) { expect_orthogonal(20, 30, 1); }

TEST(DeferredUser, orthogonal_initialisation_follows_the_seed) {
  expect_values_of_seed_name_and_index(user_module({30, 20}, [](at::Tensor& w) { nn::init::orthogonal_(w); }));
}

TEST(DeferredUser, a_weight_may_be_read_during_construction) {
  const Factory factory = user_module({20, 30}, [](at::Tensor& w) {
    w.normal_();
    w.div_(w.norm());
  });
  EXPECT_NEAR(weight_of(4, factory).norm().item<double>(), 1, 1e-5);
  expect_values_of_seed_name_and_index(factory);
}

TEST(DeferredUser, a_weight_may_be_read_and_then_changed_by_a_number) {
  const Factory factory = user_module({20, 30}, [](at::Tensor& w) {
    w.normal_();
    w.mul_(1 / w.norm().item<double>());
  });
  EXPECT_NEAR(weight_of(4, factory).norm().item<double>(), 1, 1e-5);
}

TEST(DeferredUser, a_weight_may_be_copied_and_then_changed) {
  const at::Tensor source = torch::arange(600, at::kFloat).view({20, 30});
  const Factory factory = user_module({20, 30}, [&](at::Tensor& w) {
    w.copy_(source);
    w.mul_(2);
  });
  EXPECT_TRUE(weight_of(4, factory).equal(source * 2));
}

TEST(DeferredUser, weights_may_be_computed_from_one_another) {
  struct User : nn::Module {
    User() {
      const at::NoGradGuard no_grad;
      at::Tensor first = register_parameter("first", torch::empty({8, 8}));
      at::Tensor second = register_parameter("second", torch::empty({8, 8}));
      first.normal_();
      second.copy_(first.t());
      second.neg_();
    }
  };
  const Values values = values_of(3, [] { return std::make_shared<User>(); });
  const at::Tensor first = tensor_of(values.at("first"), {8, 8});
  EXPECT_GT(first.abs().sum().item<float>(), 0);
  EXPECT_TRUE(tensor_of(values.at("second"), {8, 8}).equal(-first.t()));
}

// A tensor that is a plain member, neither parameter nor buffer, is used in forward as it is.
TEST(DeferredUser, plain_members_have_their_values_after_construction) {
  struct User : nn::Module {
    User() : scale(torch::empty({5})), ramp(torch::arange(5, at::kFloat)) {
      scale.fill_(3);
      ramp.add_(1);
      register_parameter("weight", torch::zeros({5}));
    }
    at::Tensor scale;
    at::Tensor ramp;
  };
  const DeferredModule deferred(1, [] { return std::make_shared<User>(); });
  const auto& user = dynamic_cast<const User&>(*deferred.module());
  EXPECT_TRUE(user.scale.equal(torch::full({5}, 3.0F)));
  EXPECT_TRUE(user.ramp.equal(torch::arange(1, 6, at::kFloat)));
}

TEST(DeferredUser, shapes_may_be_changed_in_place) {
  struct User : nn::Module {
    User() {
      const at::NoGradGuard no_grad;
      at::Tensor weight = torch::empty({4, 6});
      weight.normal_();
      weight.t_();
      EXPECT_EQ(weight.size(0), 6);
      register_parameter("weight", weight);
    }
  };
  const DeferredModule deferred(1, [] { return std::make_shared<User>(); });
  EXPECT_EQ(deferred.module()->parameters()[0].size(0), 6);
}

TEST(DeferredUser, doubles_are_initialised) {
  struct User : nn::Module {
    User() {
      const at::NoGradGuard no_grad;
      register_parameter("weight", torch::empty({20, 30}, at::kDouble)).normal_(3, 0.1);
    }
  };
  const Factory factory = [] { return std::make_shared<User>(); };
  expect_values_of_seed_name_and_index(factory);
  EXPECT_NEAR(weight_of(4, factory).mean().item<double>(), 3, 0.05);
}

TEST(Deferred, leaves_the_default_generator_where_it_was) {
  torch::manual_seed(11);
  torch::rand({3});
  const at::Tensor expected = torch::rand({5});
  torch::manual_seed(11);
  torch::rand({3});
  const DeferredModule deferred(1, make<nn::BatchNorm1d>(30));
  EXPECT_TRUE(torch::rand({5}).equal(expected));
}

TEST(Deferred, memory_stays_small_for_800_megabytes) {
  constexpr std::int64_t kMiB = 1 << 20;
  const std::int64_t before = memory::usage().resident.value;
  if (before == 0) GTEST_SKIP() << "no /proc/self/smaps_rollup here";
  const std::int64_t peak = memory::peak_resident().value;
  DeferredModule deferred(1, [] {
    nn::Sequential model;
    for (int i = 0; i < 4; ++i) model->push_back(nn::Linear(8192, 6144));
    return model.ptr();
  });
  std::int64_t bytes = 0;
  for (const at::Tensor& parameter : deferred.module()->parameters()) bytes += parameter.numel() * 4;
  ASSERT_GT(bytes, 800'000'000);
  // A shard of a parameter is made without the rest.
  const auto parameters = deferred.module()->named_parameters();
  std::vector<float> part(8192);
  deferred.fill(parameters["2.weight"], "2.weight", 8192 * 3000, part);
  EXPECT_NE(part.front(), 0.0F);
  EXPECT_LT(memory::usage().resident.value - before, 20 * kMiB);
  EXPECT_LT(memory::peak_resident().value, std::max(peak, before) + 30 * kMiB);
}

TEST(Eager, values_are_those_of_the_tensor) {
  EagerValues eager;
  const at::Tensor parameter = torch::arange(12, at::kDouble).view({3, 4}).t();
  std::vector<float> out(3);
  eager.fill(parameter, "x", 2, out);
  EXPECT_THAT(out, ElementsAre(8, 1, 5));
}

}  // namespace
}  // namespace trireme::parallel
