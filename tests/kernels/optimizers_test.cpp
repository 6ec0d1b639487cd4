// Update rules against the results of torch and lion-pytorch (data/optim), and against themselves
// for splits, outputs and moments in bf16.
#include "trireme/kernels/optimizers.hpp"

#include "support/safetensors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/kernels/convert.hpp"
#include "trireme/kernels/norm.hpp"

#include "kernels/kokkos.hpp"
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <variant>

namespace trireme::kernels {
namespace {

using nlohmann::json;
using support::GoldenTensors;

const std::filesystem::path kData = std::filesystem::path(TRIREME_TEST_DATA) / "kernels/data/optim";

// Neighbouring floats are one apart, across zero too.
std::int64_t ulps(float a, float b) {
  const auto ordered = [](float x) {
    const auto bits = std::int64_t{std::bit_cast<std::int32_t>(x)};
    return bits < 0 ? -(bits & 0x7fffffff) : bits;
  };
  return std::abs(ordered(a) - ordered(b));
}

std::int64_t largest_ulps(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, ulps(a[i], b[i]));
  }
  return largest;
}

int num_different(const std::vector<float>& a, const std::vector<float>& b) {
  int count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

using Rule = std::variant<AdamRule, SgdRule, AdagradRule, LionRule>;

int moments_of(const Rule& rule) {
  return std::visit([](const auto& r) { return num_moments(r); }, rule);
}
void apply(const Rule& rule, const GradientTreatment& treatment, const UpdateRange& range) {
  std::visit([&](const auto& r) { update(r, treatment, range); }, rule);
}

// Arrays of one parameter, and a range over any part of them.
struct State {
  std::vector<float> grad;
  std::vector<float> master;
  std::vector<float> moments[3];

  explicit State(std::vector<float> initial, float accumulator = 0) : master(std::move(initial)) {
    for (auto& moment : moments) moment.assign(master.size(), accumulator);
  }
  UpdateRange range(std::size_t begin, std::size_t size) {
    return {std::span(grad).subspan(begin, size),
            std::span(master).subspan(begin, size),
            {moments[0].data() + begin, moments[1].data() + begin, moments[2].data() + begin},
            NumberType::kFp32,
            {},
            begin};
  }
  UpdateRange range() { return range(0, master.size()); }
};

template <class R>
void set_betas(R& rule, const json& o) {
  if (!o.contains("betas")) return;
  rule.beta1 = o["betas"][0];
  rule.beta2 = o["betas"][1];
}

// A case's options, of the constructor or of a group; what is not said stays.
void set_options(Rule& rule, const json& o) {
  std::visit(
      [&](auto& r) {
        r.lr = o.value("lr", r.lr);
        r.weight_decay = o.value("weight_decay", r.weight_decay);
      },
      rule);
  if (auto* adam = std::get_if<AdamRule>(&rule)) {
    adam->eps = o.value("eps", adam->eps);
    adam->amsgrad = o.value("amsgrad", adam->amsgrad);
    set_betas(*adam, o);
  } else if (auto* sgd = std::get_if<SgdRule>(&rule)) {
    sgd->momentum = o.value("momentum", sgd->momentum);
    sgd->dampening = o.value("dampening", sgd->dampening);
    sgd->nesterov = o.value("nesterov", sgd->nesterov);
  } else if (auto* adagrad = std::get_if<AdagradRule>(&rule)) {
    adagrad->eps = o.value("eps", adagrad->eps);
    adagrad->lr_decay = o.value("lr_decay", adagrad->lr_decay);
  } else {
    set_betas(std::get<LionRule>(rule), o);
  }
}

Rule rule_of(const json& golden, const std::string& parameter, std::size_t step,
             std::int64_t count) {
  const std::string kind = golden["optimizer"];
  Rule rule;
  if (kind == "AdamW") rule = AdamRule{.weight_decay = 0.01};  // torch's default
  if (kind == "Adam") rule = AdamRule{.decoupled = false};
  if (kind == "SGD") rule = SgdRule{};
  if (kind == "Adagrad") rule = AdagradRule{};
  if (kind == "Lion") rule = LionRule{};
  set_options(rule, golden["options"]);
  for (const json& group : golden.value("groups", json::array())) {
    for (const json& member : group["params"]) {
      if (member == parameter) set_options(rule, group);
    }
  }
  if (golden.contains("lrs")) std::visit([&](auto& r) { r.lr = golden["lrs"][step]; }, rule);
  if (auto* adam = std::get_if<AdamRule>(&rule)) adam->step = count;
  if (auto* sgd = std::get_if<SgdRule>(&rule)) sgd->step = count;
  if (auto* adagrad = std::get_if<AdagradRule>(&rule)) adagrad->step = count;
  return rule;
}

bool has_gradient(const json& golden, const std::string& name, std::size_t step) {
  for (const json& missing : golden.value("missing", json::array())) {
    if (missing[0] == step && missing[1] == name) return false;
  }
  return true;
}

// torch's names of a rule's moments, in our order.
std::vector<std::string> state_names(const Rule& rule) {
  if (std::holds_alternative<AdamRule>(rule)) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  if (std::holds_alternative<SgdRule>(rule)) return {"momentum_buffer"};
  if (std::holds_alternative<AdagradRule>(rule)) return {"sum"};
  return {"exp_avg"};
}

json all_cases() { return support::read_json(kData / "optimizers.json"); }

std::vector<std::string> names_of_cases() {
  std::vector<std::string> names;
  const json all = all_cases();
  for (const json& one : all["cases"]) {
    if (one["optimizer"] != "Adafactor") names.push_back(one["name"]);
  }
  return names;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, ends_where_the_original_ends) {
  const json all = all_cases();
  const GoldenTensors inputs = support::read_safetensors(kData / "inputs.safetensors");
  const GoldenTensors results = support::read_safetensors(kData / "results.safetensors");
  json golden;
  for (const json& one : all["cases"]) {
    if (one["name"] == GetParam()) golden = one;
  }
  ASSERT_FALSE(golden.is_null());
  for (const std::string name : {"p1", "p7", "p129", "p4099", "m7x19", "t3x5x11"}) {
    SCOPED_TRACE(name);
    State state(inputs.at("param." + name).values,
                golden["options"].value("initial_accumulator_value", 0.0F));
    std::vector<Half> work(state.master.size());
    std::int64_t steps = 0;
    Rule rule;
    for (std::size_t step = 0; step < all["steps"]; ++step) {
      if (!has_gradient(golden, name, step)) continue;
      rule = rule_of(golden, name, step, ++steps);
      state.grad = inputs.at("grad." + std::to_string(step) + "." + name).values;
      UpdateRange range = state.range();
      range.work = {work.data(), NumberType::kBf16};
      apply(rule, {.maximize = golden["options"].value("maximize", false)}, range);
    }
    const auto expected = [&](const std::string& key) {
      return results.at(GetParam() + "." + key + "." + name).values;
    };
    std::vector<float> master = state.master;
    if (name == "p4099") {  // of which the file has every sixteenth
      master.clear();
      for (std::size_t i = 0; i < state.master.size(); i += 16) master.push_back(state.master[i]);
    } else {
      for (int m = 0; m < moments_of(rule); ++m) {
        const std::string slot = state_names(rule)[static_cast<std::size_t>(m)];
        EXPECT_EQ(largest_ulps(state.moments[m], expected("state." + slot)), 0) << slot;
      }
    }
    // Equal to the bit, but for one or two elements of long tensors, where torch's square root is
    // not always rounded correctly. The tolerance is what torch allows itself between its own
    // implementations.
    const std::int64_t tolerance = golden["spread"].value("fused_ulps", 0);
    EXPECT_LE(largest_ulps(master, expected("param")), tolerance);
    EXPECT_LE(num_different(master, expected("param")), state.master.size() > 100 ? 2 : 0);
    std::vector<Half> narrowed(work.size());
    narrow_bf16(state.master, narrowed);
    EXPECT_EQ(work, narrowed);
  }
}

INSTANTIATE_TEST_SUITE_P(Originals, Golden, testing::ValuesIn(names_of_cases()),
                         [](const auto& test) { return test.param; });

// What all rules promise beside their formula.

State random_state(std::int64_t size) {
  State state(numbers(size, 2));
  state.grad = numbers(size, 1);
  for (int m = 0; m < 3; ++m)
    state.moments[m] = numbers(size, 3 + static_cast<std::uint64_t>(m), 0.1F);
  for (float& square : state.moments[1]) square = std::fabs(square);
  return state;
}

const GradientTreatment kTreatment{.scale = 0.37F, .rounding = 99};

std::vector<Rule> every_rule() {
  const AdamRule adam{.lr = 1e-2, .weight_decay = 0.1, .step = 3};
  std::vector<Rule> rules;
  for (const bool decoupled : {true, false}) {
    for (const bool amsgrad : {true, false}) {
      AdamRule rule = adam;
      rule.decoupled = decoupled;
      rule.amsgrad = amsgrad;
      rules.emplace_back(rule);
    }
  }
  rules.emplace_back(SgdRule{.lr = 0.1, .weight_decay = 0.01});
  rules.emplace_back(SgdRule{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .step = 1});
  rules.emplace_back(SgdRule{.lr = 0.1, .momentum = 0.9, .nesterov = true, .step = 2});
  rules.emplace_back(AdagradRule{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .step = 4});
  rules.emplace_back(LionRule{.lr = 1e-3, .weight_decay = 0.1});
  return rules;
}

void make_usable(const Rule& rule, State& state) {
  if (std::holds_alternative<AdagradRule>(rule))
    state.moments[0] = state.moments[1];  // no negative sums
}

void expect_same(const State& a, const State& b) {
  EXPECT_EQ(a.master, b.master);
  for (int m = 0; m < 3; ++m) EXPECT_EQ(a.moments[m], b.moments[m]);
}

TEST(Rules, splits_of_a_range_give_the_bits_of_the_whole) {
  for (const Rule& rule : every_rule()) {
    for (const std::int64_t size : kSizes) {
      State whole = random_state(size);
      make_usable(rule, whole);
      State split = whole;
      apply(rule, kTreatment, whole.range());
      const auto total = static_cast<std::size_t>(size);
      const std::size_t first = total / 3;
      const std::size_t second = total / 7;
      apply(rule, kTreatment, split.range(0, first));
      apply(rule, kTreatment, split.range(first, second));
      apply(rule, kTreatment, split.range(first + second, total - first - second));
      expect_same(whole, split);
    }
  }
}

TEST(Rules, write_the_weights_in_every_type) {
  constexpr std::int64_t kSize = 5000;
  for (const Rule& rule : every_rule()) {
    State plain = random_state(kSize);
    make_usable(rule, plain);
    const State before = plain;
    apply(rule, kTreatment, plain.range());
    std::vector<Half> half(kSize), expected(kSize);
    std::vector<float> fp32(kSize);
    const auto updated = [&](void* data, NumberType type) {
      State state = before;
      UpdateRange range = state.range();
      range.work = {data, type};
      apply(rule, kTreatment, range);
      expect_same(state, plain);
    };
    updated(fp32.data(), NumberType::kFp32);
    EXPECT_EQ(plain.master, fp32);
    updated(half.data(), NumberType::kBf16);
    narrow_bf16(plain.master, expected);
    EXPECT_EQ(half, expected);
    updated(half.data(), NumberType::kFp16);
    narrow_fp16(plain.master, expected);
    EXPECT_EQ(half, expected);
  }
}

TEST(Rules, see_the_gradient_scaled_then_bounded_then_negated) {
  for (const Rule& rule : every_rule()) {
    for (const float bound : {0.0F, 0.1F}) {
      State treated = random_state(8193);
      make_usable(rule, treated);
      State before = treated;
      for (float& g : before.grad) {
        g *= 0.37F;
        if (bound > 0) g = std::max(-bound, std::min(bound, g));
        g = -g;
      }
      GradientTreatment treatment = kTreatment;
      treatment.clip_value = bound;
      treatment.maximize = true;
      apply(rule, treatment, treated.range());
      apply(rule, {}, before.range());
      expect_same(treated, before);
    }
  }
}

TEST(Rules, refuse_ranges_of_different_length_and_missing_moments) {
  for (const Rule& rule : every_rule()) {
    State state = random_state(10);
    UpdateRange range = state.range();
    range.grad = range.grad.first(9);
    EXPECT_THROW(apply(rule, {}, range), Error);
    if (moments_of(rule) == 0) continue;
    range = state.range();
    range.moments[static_cast<std::size_t>(moments_of(rule) - 1)] = nullptr;
    EXPECT_THROW(apply(rule, {}, range), Error);
  }
}

TEST(Adam, agrees_with_double_for_small_beta1_too) {
  for (const double beta1 : {0.0, 0.3, 0.5, 0.9}) {
    State state = random_state(1000);
    const State old = state;
    const AdamRule rule{.lr = 1e-2, .beta1 = beta1, .weight_decay = 0.1, .step = 3};
    update(rule, kTreatment, state.range());
    for (std::size_t i = 0; i < 1000; ++i) {
      const double g = double{state.grad[i]} * kTreatment.scale;
      const double m = beta1 * old.moments[0][i] + (1 - beta1) * g;
      const double v = rule.beta2 * old.moments[1][i] + (1 - rule.beta2) * g * g;
      const double move =
          m / (1 - std::pow(beta1, 3)) / (std::sqrt(v / (1 - std::pow(rule.beta2, 3))) + rule.eps);
      const double p = old.master[i] * (1 - rule.lr * rule.weight_decay) - rule.lr * move;
      ASSERT_NEAR(state.master[i], p, 1e-6 * (std::fabs(p) + std::fabs(move)));
    }
  }
}

// Moments in bf16: the same rule on the widened moments, then rounded.

std::vector<float> widened(const std::vector<Half>& in) {
  std::vector<float> out(in.size());
  widen_bf16(in, out);
  return out;
}

TEST(MomentsInBf16, are_widened_used_and_rounded_by_element) {
  constexpr std::size_t kSize = 70'000;  // across a border of keys
  for (const Rule& rule : every_rule()) {
    State wide = random_state(kSize);
    make_usable(rule, wide);
    std::vector<Half> halves[3];
    for (int m = 0; m < 3; ++m) {
      halves[m].resize(kSize);
      narrow_bf16(wide.moments[m], halves[m]);
      wide.moments[m] = widened(halves[m]);
    }
    State narrow = wide;
    const auto part = [&](std::size_t begin, std::size_t size) {
      UpdateRange range = narrow.range(begin, size);
      range.moment_type = NumberType::kBf16;
      for (std::size_t m = 0; m < 3; ++m) range.moments[m] = halves[m].data() + begin;
      apply(rule, kTreatment, range);
    };
    part(0, 12'345);
    part(12'345, kSize - 12'345);
    apply(rule, kTreatment, wide.range());
    EXPECT_EQ(narrow.master, wide.master) << "the rounding of moments reaches only later steps";
    for (int m = 0; m < moments_of(rule); ++m) {
      for (std::size_t i = 0; i < kSize; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(wide.moments[m][i]);
        const Half below = static_cast<Half>(bits >> 16);
        const bool exact = (bits & 0xffffU) == 0;
        ASSERT_TRUE(halves[m][i] == below || (!exact && halves[m][i] == below + 1)) << i;
      }
      std::vector<Half> first(kSize);
      narrow_bf16_stochastic(wide.moments[m], first, mix(kTreatment.rounding, 0), 0);
      EXPECT_EQ(halves[m] == first, m == 0) << "moments draw their own bits";
    }
  }
}

TEST(StochasticRounding, gives_neighbours_with_the_right_chance) {
  // 1 + k/16 of the distance to the next bf16 value, which is 2^-7.
  constexpr std::size_t kDraws = 200'000;
  for (int k = 0; k <= 16; ++k) {
    const float value = 1.0F + static_cast<float>(k) / 16 * 0x1p-7F;
    for (const float sign : {1.0F, -1.0F}) {
      const std::vector<float> in(kDraws, sign * value);
      std::vector<Half> out(kDraws);
      narrow_bf16_stochastic(in, out, 7 + static_cast<std::uint64_t>(k), 1'000'000'007);
      double up = 0;
      for (const float rounded : widened(out)) {
        const bool is_up = rounded == sign * (1.0F + 0x1p-7F);
        ASSERT_TRUE(is_up || rounded == sign) << rounded;
        up += is_up ? 1 : 0;
      }
      const double chance = k / 16.0;
      const double deviation = std::sqrt(chance * (1 - chance) * kDraws);
      EXPECT_NEAR(up, chance * kDraws, 5 * deviation + 1e-9) << k;
    }
  }
}

TEST(StochasticRounding, keeps_what_bf16_holds_and_what_is_not_finite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float largest = std::bit_cast<float>(0x7f7f0000U);
  const std::vector<float> exact{0.0F,     -0.0F, 1.0F,  -3.5F,    largest,
                                 -largest, kInf,  -kInf, 0x1p-133F};
  std::vector<float> many;
  for (int i = 0; i < 1000; ++i) many.insert(many.end(), exact.begin(), exact.end());
  std::vector<Half> out(many.size()), nearest(many.size());
  narrow_bf16_stochastic(many, out, 1, 0);
  narrow_bf16(many, nearest);
  EXPECT_EQ(out, nearest);
  const std::vector<float> edge(1000, std::numeric_limits<float>::max());
  out.resize(edge.size());
  narrow_bf16_stochastic(edge, out, 1, 0);
  for (const float value : widened(out)) ASSERT_EQ(value, largest);
  const std::vector<float> nan(100, std::bit_cast<float>(0x7f800001U));
  out.resize(nan.size());
  narrow_bf16_stochastic(nan, out, 1, 0);
  for (const float value : widened(out)) ASSERT_TRUE(std::isnan(value));
}

TEST(StochasticRounding, draws_other_bits_for_other_keys_and_elements) {
  const std::vector<float> in = numbers(4096, 5);
  const auto rounded = [&](std::uint64_t key, std::uint64_t first) {
    std::vector<Half> out(in.size());
    narrow_bf16_stochastic(in, out, key, first);
    return out;
  };
  const auto base = rounded(1, 0);
  EXPECT_EQ(base, rounded(1, 0));
  for (const auto& [key, first] : {std::pair<std::uint64_t, std::uint64_t>{2, 0},
                                   {1, 4096},
                                   {1, 1ULL << 32},
                                   {1ULL << 40, 0}}) {
    int same = 0;
    const auto other = rounded(key, first);
    for (std::size_t i = 0; i < in.size(); ++i) same += base[i] == other[i] ? 1 : 0;
    EXPECT_LT(same, 3200) << "two thirds agree by chance";
    EXPECT_GT(same, 2200);
  }
}

// Clipping by norm as the step does it: block sums, one coefficient, folded into grad_scale. torch
// multiplies the coefficient into the gradients, which is what the kernel does to each first.
TEST(Clipping, norm_and_clipped_gradients_follow_torch) {
  const json all = support::read_json(kData / "clip.json");
  const GoldenTensors inputs = support::read_safetensors(kData / "inputs.safetensors");
  const GoldenTensors expected = support::read_safetensors(kData / "clip.safetensors");
  for (const std::string name : {"l2", "l2_large_limit", "l2_small_limit", "l2_zero_limit"}) {
    SCOPED_TRACE(name);
    json golden;
    for (const json& one : all["cases"]) {
      if (one["name"] == name) golden = one;
    }
    const std::string step = std::to_string(golden["step"].get<int>());
    double total = 0;
    for (const std::string tensor : {"p1", "p7", "p129", "p4099", "m7x19", "t3x5x11"}) {
      std::vector<double> sums(1);
      block_square_sums(inputs.at("grad." + step + "." + tensor).values, sums);
      total += sums[0];
    }
    const double norm = std::sqrt(total);
    EXPECT_NEAR(norm, golden["total_norm_fp64"].get<double>(), 1e-12 * norm);
    const auto scale =
        static_cast<float>(std::min(1.0, golden["max_norm"].get<double>() / (norm + 1e-6)));
    for (const std::string tensor : {"p1", "p129", "p4099"}) {
      const auto& grad = inputs.at("grad." + step + "." + tensor).values;
      const auto& clipped = expected.at(name + "." + tensor).values;
      for (std::size_t i = 0; i < grad.size(); ++i) {
        ASSERT_NEAR(grad[i] * scale, clipped[i], 3e-7 * std::fabs(clipped[i]));
      }
    }
  }
}

TEST(Clipping, values_are_bounded_as_torch_bounds_them) {
  const json all = support::read_json(kData / "clip.json");
  const GoldenTensors inputs = support::read_safetensors(kData / "inputs.safetensors");
  const GoldenTensors expected = support::read_safetensors(kData / "clip.safetensors");
  for (const json& one : all["cases"]) {
    if (one["name"] != "value") continue;
    const std::string step = std::to_string(one["step"].get<int>());
    for (const std::string tensor : {"p1", "p7", "p129", "p4099", "m7x19", "t3x5x11"}) {
      State state(std::vector<float>(inputs.at("param." + tensor).values.size()));
      state.grad = inputs.at("grad." + step + "." + tensor).values;
      update(SgdRule{.lr = -1}, {.clip_value = one["clip_value"]}, state.range());
      EXPECT_EQ(state.master, expected.at("value." + tensor).values) << tensor;
    }
    return;
  }
  FAIL() << "no such case";
}

}  // namespace
}  // namespace trireme::kernels
