#include "trireme/optim/groups.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <unordered_set>

namespace trireme::optim {

namespace {

bool sets_something(const GroupRule& rule) {
  return rule.lr_multiplier || rule.betas || rule.eps || rule.weight_decay || rule.clip_norm;
}

Group filled(const Group& base, const GroupRule& rule) {
  Group group = base;
  group.lr *= rule.lr_multiplier.value_or(1.0);
  group.betas = rule.betas.value_or(base.betas);
  group.eps = rule.eps.value_or(base.eps);
  if (rule.weight_decay) {
    group.weight_decay = *rule.weight_decay;
    group.decay_vectors = true;
  }
  group.clip_norm = rule.clip_norm.value_or(base.clip_norm);
  return group;
}

}  // namespace

struct Groups::Patterns {
  // Either names or an expression.
  struct Pattern {
    std::unordered_set<std::string> names;
    std::regex expression;

    bool matches(const std::string& name) const {
      return names.empty() ? std::regex_search(name, expression) : names.contains(name);
    }
  };
  std::vector<Pattern> of_rule;
};

Groups::~Groups() = default;
Groups::Groups(Groups&&) noexcept = default;
Groups& Groups::operator=(Groups&&) noexcept = default;

Groups::Groups(const Group& base, std::vector<GroupRule> rules)
    : rules_(std::move(rules)), patterns_(std::make_unique<Patterns>()), groups_{base} {
  std::vector<std::string> problems;
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    const GroupRule& rule = rules_[r];
    try {
      patterns_->of_rule.push_back(
          {{rule.names.begin(), rule.names.end()}, std::regex(rule.match)});
    } catch (const std::regex_error& error) {
      problems.push_back(fmt::format("optimizer.groups.{}.match: '{}' is no regular expression: {}",
                                     r, rule.match, error.what()));
      continue;
    }
    if (!sets_something(rule)) {
      problems.push_back(fmt::format("optimizer.groups.{}: sets nothing for '{}'", r, rule.match));
    }
    Group& group = groups_.emplace_back(filled(base, rule));
    if (rule.clip_norm) group.norm_group = num_norm_groups_++;
  }
  if (!problems.empty())
    throw Error(ErrorKind::kConfig, fmt::format("{}", fmt::join(problems, "\n")));
}

std::size_t Groups::find(const std::string& name) const {
  const auto found = std::ranges::find_if(
      patterns_->of_rule, [&](const Patterns::Pattern& pattern) { return pattern.matches(name); });
  if (found == patterns_->of_rule.end()) return 0;
  return static_cast<std::size_t>(found - patterns_->of_rule.begin()) + 1;
}

double Groups::clip_norm(int norm_group) const {
  const auto found = std::ranges::find(groups_, norm_group, &Group::norm_group);
  ensure(found != groups_.end(), "a norm group that does not exist");
  return found->clip_norm;
}

void Groups::require_effect(std::span<const NamedShape> parameters) const {
  std::vector<std::size_t> fallen(groups_.size(), 0);
  for (const NamedShape& parameter : parameters) ++fallen[find(parameter.name)];
  std::vector<std::string> problems;
  std::vector<std::string> names;
  for (const NamedShape& parameter : parameters) names.push_back(parameter.name);
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    if (fallen[r + 1] > 0) continue;
    const auto matches = [&](const std::string& name) {
      return patterns_->of_rule[r].matches(name);
    };
    const auto first = std::ranges::find_if(names, matches);
    if (first != names.end()) {
      problems.push_back(
          fmt::format("optimizer.groups.{}: has no effect, rules before it take all that '{}' "
                      "matches ({}, ...)",
                      r, rules_[r].match, *first));
      continue;
    }
    const auto near = nearest(rules_[r].match, names);
    problems.push_back(fmt::format("optimizer.groups.{}.match: '{}' matches no parameter{}", r,
                                   rules_[r].match,
                                   near ? fmt::format(" (did you mean '{}'?)", *near) : ""));
  }
  if (problems.empty()) return;
  throw Error(
      ErrorKind::kConfig, fmt::format("{}", fmt::join(problems, "\n")),
      names.empty()
          ? ""
          : fmt::format(
                "names look like {}",
                fmt::join(std::span(names).first(std::min<std::size_t>(names.size(), 3)), ", ")));
}

}  // namespace trireme::optim
