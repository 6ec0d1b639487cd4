#include "trireme/optim/optimizer.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/convert.hpp"
#include "trireme/kernels/optimizers.hpp"

#include "adafactor.hpp"
#include "number_type.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <variant>

namespace trireme::optim {

namespace {

enum class Kind { kAdamW, kAdam, kSgd, kAdagrad, kLion, kAdafactor };

// In the order of Kind.
const std::array<std::string, 6> kTypes{"adamw", "adam", "sgd", "adagrad", "lion", "adafactor"};

// Throws Config for an unknown type.
Kind kind_of(const std::string& type) {
  const auto found = std::ranges::find(kTypes, type);
  if (found != kTypes.end()) return static_cast<Kind>(found - kTypes.begin());
  const auto near = nearest(type, kTypes);
  throw Error(ErrorKind::kConfig,
              fmt::format("optimizer.type: unknown type '{}'; {}", type,
                          near ? fmt::format("did you mean '{}'", *near)
                               : fmt::format("there are {}", fmt::join(kTypes, ", "))));
}

using Rule =
    std::variant<kernels::AdamRule, kernels::SgdRule, kernels::AdagradRule, kernels::LionRule>;

std::vector<std::string> problems_of(const OptimizerOptions& options, Kind kind) {
  std::vector<std::string> problems;
  const auto refuse = [&](bool wrong, std::string text) {
    if (wrong) problems.push_back(std::move(text));
  };
  refuse(options.nesterov && (options.momentum == 0 || options.dampening != 0),
         "optimizer.nesterov: needs momentum above 0 and dampening 0");
  refuse(kind == Kind::kAdafactor && options.maximize,
         "optimizer.maximize: Adafactor only minimizes");
  refuse(options.moments != at::kFloat && options.moments != at::kBFloat16,
         "precision.moments: moments are fp32 or bf16");
  const auto fraction = [](double value) { return value >= 0 && value < 1; };
  refuse(!fraction(options.betas[0]) || !fraction(options.betas[1]),
         "optimizer.betas: both must be in [0, 1)");
  refuse(options.adafactor.clip_threshold <= 0, "optimizer.clip_threshold: must be above 0");
  const bool adam = kind == Kind::kAdamW || kind == Kind::kAdam;
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const GroupRule& rule = options.groups[g];
    refuse(rule.betas && !adam && kind != Kind::kLion,
           fmt::format("optimizer.groups.{}.betas: have no effect on {}", g, options.type));
    refuse(rule.eps && !adam && kind != Kind::kAdagrad,
           fmt::format("optimizer.groups.{}.eps: has no effect on {}", g, options.type));
  }
  return problems;
}

Group base_group(const OptimizerOptions& options) {
  return {.lr = options.lr,
          .betas = options.betas,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .decay_vectors = options.decay_all,
          .clip_norm = options.clip_norm};
}

}  // namespace

double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

struct Optimizer::Impl {
  explicit Impl(OptimizerOptions given)
      : options(std::move(given)),
        kind(kind_of(options.type)),
        groups(base_group(options), options.groups) {
    const std::vector<std::string> problems = problems_of(options, kind);
    if (!problems.empty()) {
      throw Error(ErrorKind::kConfig, fmt::format("{}", fmt::join(problems, "\n")));
    }
  }

  static double rate_of(const Group& group, std::size_t index, const UpdateStep& step) {
    if (!step.rates.empty()) return step.rates.at(index);
    return step.rate ? step.rate(group.lr) : group.lr;
  }

  Rule rule(const Group& group, double rate, const UpdateStep& step) const {
    const double beta1 = step.momentum.value_or(group.betas[0]);
    const double beta2 = step.beta2.value_or(group.betas[1]);
    if (kind == Kind::kSgd) {
      return kernels::SgdRule{.lr = rate,
                              .momentum = momentum(step),
                              .dampening = options.dampening,
                              .nesterov = options.nesterov,
                              .step = step.number};
    }
    if (kind == Kind::kAdagrad) {
      return kernels::AdagradRule{
          .lr = rate, .lr_decay = options.lr_decay, .eps = group.eps, .step = step.number};
    }
    if (kind == Kind::kLion) {
      return kernels::LionRule{.lr = rate, .beta1 = beta1, .beta2 = beta2};
    }
    return kernels::AdamRule{.lr = rate,
                             .beta1 = beta1,
                             .beta2 = beta2,
                             .eps = group.eps,
                             .decoupled = kind == Kind::kAdamW,
                             .amsgrad = options.amsgrad,
                             .step = step.number};
  }

  // A schedule moves a momentum that there is; it gives none to an SGD without.
  double momentum(const UpdateStep& step) const {
    return options.momentum == 0 ? 0 : step.momentum.value_or(options.momentum);
  }

  double relative_rate(double base, const UpdateStep& step) const {
    const auto number = static_cast<double>(step.number);
    if (!options.adafactor.relative_step) return step.rate ? step.rate(base) : base;
    const double least = options.adafactor.warmup_init ? 1e-6 * number : 1e-2;
    return std::min(least, 1.0 / std::sqrt(number)) * (base / options.lr);
  }

  kernels::GradientTreatment treatment(const Group& group, const parallel::StepSums& sums,
                                       const UpdateStep& step) const {
    const auto norm_group = static_cast<std::size_t>(group.norm_group);
    const double norm = std::sqrt(sums.square_norms.at(norm_group)) * step.grad_scale;
    const double clip = clip_coefficient(norm, groups.clip_norm(group.norm_group));
    return {.scale = static_cast<float>(step.grad_scale * clip),
            .clip_value = static_cast<float>(step.clip_value.value_or(options.clip_value)),
            .maximize = options.maximize,
            .rounding = mix(mix(options.seed, stream_key(0, "moments")),
                            static_cast<std::uint64_t>(step.number))};
  }

  void update_elements(parallel::Engine& engine, const parallel::StepSums& sums,
                       const UpdateStep& step) {
    std::vector<Rule> rules;
    std::vector<kernels::GradientTreatment> treatments;
    for (std::size_t g = 0; g < groups.all().size(); ++g) {
      rules.push_back(rule(groups[g], rate_of(groups[g], g, step), step));
      treatments.push_back(treatment(groups[g], sums, step));
    }
    engine.for_each_update([&](const parallel::UpdatePiece& piece) {
      const std::size_t g = group_of.at(piece.parameter);
      kernels::UpdateRange range{piece.grad, piece.master};
      std::ranges::copy(piece.moments, range.moments.begin());
      range.moment_type = number_type(engine.moments());
      range.work = {piece.work, number_type(piece.work_type)};
      range.first_element = piece.element;
      std::visit(
          [&](auto rule) {
            rule.weight_decay = groups[g].decay_of(piece.slot->shape.size());
            kernels::update(rule, treatments[g], range);
          },
          rules[g]);
    });
  }

  void update_factored(parallel::Engine& engine, const parallel::StepSums& sums,
                       const UpdateStep& step) {
    std::vector<AdafactorStep> steps;
    const auto parameters = engine.parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const Group& group = groups[group_of.at(p)];
      steps.push_back({relative_rate(group.lr, step), group.decay_of(parameters[p]->shape.size()),
                       treatment(group, sums, step)});
    }
    adafactor->update(engine, steps, step.number, treatment(groups[0], sums, step).rounding);
  }

  OptimizerOptions options;
  Kind kind;
  Groups groups;
  std::vector<std::size_t> group_of;  // by parameter
  std::unique_ptr<Adafactor> adafactor;
};

Optimizer::Optimizer(OptimizerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

std::vector<std::string> Optimizer::moment_names() const {
  const OptimizerOptions& options = impl_->options;
  using Names = std::vector<std::string>;
  switch (impl_->kind) {
    case Kind::kAdamW:
    case Kind::kAdam:
      return options.amsgrad ? Names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
                             : Names{"exp_avg", "exp_avg_sq"};
    case Kind::kSgd:
      return options.momentum == 0 ? Names{} : Names{"momentum_buffer"};
    case Kind::kAdagrad:
      return {"sum"};
    case Kind::kLion:
      return {"exp_avg"};
    case Kind::kAdafactor:
      return options.momentum == 0 ? Names{} : Names{"exp_avg"};
  }
  return {};
}

std::vector<double> Optimizer::base_rates() const {
  std::vector<double> rates;
  for (const Group& group : impl_->groups.all()) {
    if (std::ranges::find(rates, group.lr) == rates.end()) rates.push_back(group.lr);
  }
  return rates;
}

bool Optimizer::has_momentum() const {
  if (impl_->kind == Kind::kSgd) return impl_->options.momentum > 0;
  return impl_->kind != Kind::kAdagrad && impl_->kind != Kind::kAdafactor;
}

void Optimizer::configure(parallel::EngineOptions& options) const {
  options.num_moments = static_cast<int>(moment_names().size());
  options.moments = impl_->options.moments;
  options.num_norm_groups = impl_->groups.num_norm_groups();
  options.norm_group_of = [impl = impl_.get()](const parallel::Slot& slot) {
    return impl->groups[impl->groups.find(slot.name)].norm_group;
  };
}

void Optimizer::attach(parallel::Engine& engine, comm::Communicator& world) {
  ensure(engine.num_moments() == static_cast<int>(moment_names().size()),
         "the engine was not configured for this optimizer");
  std::vector<NamedShape> trained;
  impl_->group_of.clear();
  for (const parallel::Slot* slot : engine.parameters()) {
    impl_->group_of.push_back(impl_->groups.find(slot->name));
    if (slot->trains) trained.push_back({slot->name, slot->shape});
  }
  impl_->groups.require_effect(trained);
  const OptimizerOptions& options = impl_->options;
  if (impl_->kind == Kind::kAdafactor) {
    impl_->adafactor =
        std::make_unique<Adafactor>(options.adafactor, options.momentum, engine, world);
  }
  if (impl_->kind != Kind::kAdagrad || options.initial_accumulator == 0) return;
  const auto initial = static_cast<float>(options.initial_accumulator);
  for (const parallel::StatePiece& piece : engine.state(/*owned=*/false)) {
    if (!engine.parameters()[piece.parameter]->trains) continue;
    const auto count = static_cast<std::size_t>(piece.count);
    const std::vector<float> values(count, initial);
    if (engine.moments() == at::kFloat) {
      engine.write_state(piece, 1, 0, std::as_bytes(std::span(values)));
    } else {
      std::vector<kernels::Half> narrow(count);
      kernels::narrow_bf16(values, narrow);
      engine.write_state(piece, 1, 0, std::as_bytes(std::span(narrow)));
    }
  }
}

void Optimizer::update(parallel::Engine& engine, const parallel::StepSums& sums,
                       const UpdateStep& step) {
  if (impl_->kind == Kind::kAdafactor) {
    impl_->update_factored(engine, sums, step);
  } else {
    impl_->update_elements(engine, sums, step);
  }
}

double Optimizer::rate(const UpdateStep& step) const {
  const double base = impl_->options.lr;
  if (impl_->kind == Kind::kAdafactor) return impl_->relative_rate(base, step);
  return step.rate ? step.rate(base) : base;
}

std::vector<ExtraTensor> Optimizer::extra_state() {
  return impl_->adafactor ? impl_->adafactor->extra_state() : std::vector<ExtraTensor>{};
}

}  // namespace trireme::optim
