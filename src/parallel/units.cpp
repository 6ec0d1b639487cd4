#include "trireme/parallel/units.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <unordered_set>

namespace trireme::parallel {

namespace {

using NodeSet = std::unordered_set<const ModuleTree*>;

template <class Visit>
void for_each_module(const ModuleTree& tree, const Visit& visit) {
  visit(tree);
  for (const ModuleTree& child : tree.children) for_each_module(child, visit);
}

// ---- which modules are units ----

bool has_parameters(const ModuleTree& tree) {
  return !tree.parameters.empty() ||
         std::any_of(tree.children.begin(), tree.children.end(), has_parameters);
}

bool has_twin(const ModuleTree& child, const ModuleTree& parent) {
  return std::any_of(parent.children.begin(), parent.children.end(), [&](const ModuleTree& other) {
    return &other != &child && other.class_name == child.class_name && has_parameters(other);
  });
}

// Twins make units only inside a container: two linear layers side by side in one block are not
// units. A block is a module with modules inside; a list of bare layers is better left in one unit.
void pick_repeated_blocks(const ModuleTree& tree, NodeSet& picked) {
  for (const ModuleTree& child : tree.children) {
    if (tree.is_container && !child.children.empty() && has_parameters(child) &&
        has_twin(child, tree)) {
      picked.insert(&child);
    } else {
      pick_repeated_blocks(child, picked);
    }
  }
}

// Returns the number of parameters below that are in no picked module yet.
std::int64_t pick_by_size(const ModuleTree& tree, std::int64_t least, NodeSet& picked) {
  std::int64_t rest = 0;
  for (const auto& [name, parameter] : tree.parameters) rest += parameter.numel();
  for (const ModuleTree& child : tree.children) rest += pick_by_size(child, least, picked);
  if (rest < least) return rest;
  picked.insert(&tree);
  return 0;
}

std::string without_impl(std::string name) {
  constexpr std::string_view kSuffix = "Impl";
  if (name.size() > kSuffix.size() && name.ends_with(kSuffix))
    name.resize(name.size() - kSuffix.size());
  return name;
}

std::set<std::string> split_names(const std::string& text) {
  std::set<std::string> names;
  static const std::regex kSeparator(R"(\s*,\s*)");
  for (std::sregex_token_iterator it(text.begin(), text.end(), kSeparator, -1), end; it != end;
       ++it) {
    if (it->length() > 0) names.insert(without_impl(*it));
  }
  return names;
}

void pick_by_class(const ModuleTree& tree, const std::string& policy, NodeSet& picked) {
  std::set<std::string> missing = split_names(policy);
  const std::set<std::string> wanted = missing;
  std::set<std::string> known;
  for_each_module(tree, [&](const ModuleTree& module) {
    if (!module.path.empty()) known.insert(module.class_name);
    if (!wanted.contains(module.class_name)) return;
    missing.erase(module.class_name);
    picked.insert(&module);
  });
  if (missing.empty()) return;
  throw Error(
      ErrorKind::kConfig,
      fmt::format("parallel.units: the model has no module of class '{}'",
                  fmt::join(missing, "', '")),
      fmt::format("its classes are {}; or use auto, none or size:N", fmt::join(known, ", ")));
}

std::optional<std::int64_t> size_of(const std::string& policy) {
  constexpr std::string_view kPrefix = "size:";
  if (!policy.starts_with(kPrefix)) return {};
  const char* const begin = policy.data() + kPrefix.size();
  const char* const end = policy.data() + policy.size();
  double value = 0;
  const auto [rest, error] = std::from_chars(begin, end, value);
  static const std::map<std::string, double> kUnits{
      {"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"k", 1e3}};
  const auto unit = kUnits.find(std::string(rest, end));
  if (error != std::errc() || unit == kUnits.end() || value * unit->second < 1) {
    throw Error(ErrorKind::kConfig, fmt::format("parallel.units: '{}' is no size", policy),
                "write for example size:20M, a number of parameters");
  }
  return static_cast<std::int64_t>(value * unit->second);
}

NodeSet pick(const ModuleTree& tree, const std::string& policy) {
  NodeSet picked;
  if (policy == "auto") {
    pick_repeated_blocks(tree, picked);
  } else if (policy == "none") {
    picked.insert(&tree);
  } else if (const auto least = size_of(policy)) {
    pick_by_size(tree, *least, picked);
  } else {
    pick_by_class(tree, policy, picked);
  }
  return picked;
}

// ---- patterns ----

// Names that match one of several patterns; remembers which patterns never did.
class Patterns {
 public:
  Patterns(std::string field, const std::vector<std::string>& patterns)
      : field_(std::move(field)), texts_(patterns), used_(patterns.size(), false) {
    for (const std::string& pattern : patterns) {
      try {
        regexes_.emplace_back(pattern);
      } catch (const std::regex_error&) {
        throw Error(ErrorKind::kConfig,
                    fmt::format("{}: '{}' is no regular expression", field_, pattern),
                    "escape special characters: . * + ? ( ) [ ] { } \\ ^ $ |");
      }
    }
  }

  bool match(const std::string& name) {
    bool any = false;
    for (std::size_t i = 0; i < regexes_.size(); ++i) {
      if (!std::regex_search(name, regexes_[i])) continue;
      used_[i] = true;
      any = true;
    }
    return any;
  }

  void require_all_used(const std::string& what) const {
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      throw Error(ErrorKind::kConfig,
                  fmt::format("{}: '{}' matches no {} of the model", field_, texts_[i], what),
                  "leave it out, or compare it with the names that `trireme plan` lists");
    }
  }

 private:
  std::string field_;
  std::vector<std::string> texts_;
  std::vector<std::regex> regexes_;
  std::vector<bool> used_;
};

// ---- from modules to units ----

struct Traits {
  bool trains = true;
  bool keeps_fp32 = false;
  bool permanent = false;
  auto operator<=>(const Traits&) const = default;
};

class Finder {
 public:
  Finder(const ModuleTree& tree, const UnitOptions& options)
      : picked_(pick(tree, options.policy)),
        ignored_("parallel.ignored", options.ignored),
        keep_fp32_("precision.keep_fp32", options.keep_fp32),
        frozen_("model.frozen", options.frozen) {
    walk(tree, nullptr, false);
    ignored_.require_all_used("module");
    keep_fp32_.require_all_used("parameter");
    frozen_.require_all_used("parameter");
  }

  std::vector<UnitParameters> take() {
    std::vector<UnitParameters> result;
    for (Group& group : groups_) {
      for (UnitParameters& unit : group.units) result.push_back(std::move(unit));
    }
    return result;
  }

 private:
  // What one module, or a run of parameters outside all picked modules, gives: a unit for each set
  // of traits.
  struct Group {
    std::string name;
    std::vector<UnitParameters> units;
  };

  // `group`: index of the picked module around, or null.
  void walk(const ModuleTree& tree, const std::size_t* group, bool ignored) {
    ignored = ignored || (!tree.path.empty() && ignored_.match(tree.path));
    std::size_t own = 0;
    if (picked_.contains(&tree)) {
      own = groups_.size();
      groups_.push_back({tree.path.empty() ? "model" : tree.path, {}});
      group = &own;
      in_rest_ = false;
    }
    for (const auto& [name, parameter] : tree.parameters) {
      if (group == nullptr && !seen_.contains(parameter.unsafeGetTensorImpl())) open_rest(name);
      add(name, parameter, group == nullptr ? groups_.size() - 1 : *group, ignored);
    }
    for (const ModuleTree& child : tree.children) walk(child, group, ignored);
    if (picked_.contains(&tree)) in_rest_ = false;
  }

  void open_rest(const std::string& name) {
    if (!in_rest_) groups_.push_back({name, {}});
    in_rest_ = true;
  }

  void add(const std::string& name, at::Tensor parameter, std::size_t group, bool ignored) {
    if (!seen_.insert(parameter.unsafeGetTensorImpl()).second) return;
    if (!parameter.is_floating_point()) {
      throw Error(ErrorKind::kConfig, fmt::format("parameter {} is not floating point", name),
                  "register it as a buffer");
    }
    if (frozen_.match(name) || ignored) parameter.requires_grad_(false);
    const Traits traits{parameter.requires_grad(), keep_fp32_.match(name), ignored};
    UnitParameters& unit = unit_with(groups_[group], traits);
    unit.names.push_back(name);
    unit.parameters.push_back(std::move(parameter));
  }

  static UnitParameters& unit_with(Group& group, const Traits& traits) {
    for (UnitParameters& unit : group.units) {
      if (Traits{unit.trains, unit.keeps_fp32, unit.permanent} == traits) return unit;
    }
    std::string name = group.name;
    if (traits.permanent) {
      name += " (ignored)";
    } else if (!traits.trains) {
      name += " (frozen)";
    }
    if (traits.keeps_fp32) name += " (fp32)";
    return group.units.emplace_back(
        UnitParameters{name, {}, {}, traits.trains, traits.keeps_fp32, traits.permanent});
  }

  NodeSet picked_;
  Patterns ignored_;
  Patterns keep_fp32_;
  Patterns frozen_;
  std::vector<Group> groups_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  bool in_rest_ = false;
};

}  // namespace

std::vector<UnitParameters> find_units(const ModuleTree& tree, const UnitOptions& options) {
  Finder finder(tree, options);
  std::vector<UnitParameters> units = finder.take();
  if (units.empty()) {
    throw Error(ErrorKind::kConfig, "the model has no parameters",
                "register them with register_parameter or register_module");
  }
  return units;
}

std::vector<Unit> describe(const std::vector<UnitParameters>& units) {
  std::vector<Unit> result;
  for (const UnitParameters& unit : units) {
    Unit& out = result.emplace_back();
    out.name = unit.name;
    out.trains = unit.trains;
    out.keeps_fp32 = unit.keeps_fp32;
    out.permanent = unit.permanent;
    for (std::size_t i = 0; i < unit.parameters.size(); ++i)
      out.slots.push_back({unit.names[i], unit.parameters[i].sizes().vec(), 0, 0, unit.trains});
  }
  return result;
}

}  // namespace trireme::parallel
