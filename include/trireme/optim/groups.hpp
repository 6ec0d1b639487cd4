// Which parameter is updated with what: ordered rules on parameter names, the first that matches
// wins. Without rules only one thing differs between parameters: those with fewer than two
// dimensions (norms, biases) do not decay.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::optim {

// Settings for the parameters whose name has a match of `match` (ECMAScript; write ^...$ for the
// whole name). What is not set is the optimizer's.
struct GroupRule {
  std::string match;
  std::vector<std::string> names = {};  // exactly these parameters, instead of a match
  std::optional<double> lr_multiplier = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};  // said here, it holds for norms and biases too
  std::optional<double> clip_norm =
      {};  // the group is clipped by its own norm, apart from the rest
};

// A group with every setting filled in.
struct Group {
  double lr = 0;
  std::array<double, 2> betas{};
  double eps = 0;
  double weight_decay = 0;
  bool decay_vectors = false;  // whether parameters with fewer than two dimensions decay
  double clip_norm = 0;        // 0: not clipped
  int norm_group = 0;          // whose norm it is clipped by

  double decay_of(std::size_t num_dimensions) const {
    return num_dimensions >= 2 || decay_vectors ? weight_decay : 0;
  }
};

// A parameter as far as rules look at it.
struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

class Groups {
 public:
  // `base` holds for parameters that no rule matches, and fills the gaps of rules. Throws Config
  // with all problems: expressions that do not compile, rules that set nothing.
  Groups(const Group& base, std::vector<GroupRule> rules);
  ~Groups();
  Groups(Groups&&) noexcept;
  Groups& operator=(Groups&&) noexcept;

  // Returns the index of a parameter's group; 0 is the group without rule.
  std::size_t find(const std::string& name) const;
  const Group& operator[](std::size_t group) const { return groups_[group]; }
  std::span<const Group> all() const { return groups_; }
  int num_norm_groups() const { return num_norm_groups_; }
  // Returns the bound of a norm group; 0: none.
  double clip_norm(int norm_group) const;

  // Throws Config for every rule that no parameter falls under, saying why.
  void require_effect(std::span<const NamedShape> parameters) const;

 private:
  struct Patterns;

  std::vector<GroupRule> rules_;
  std::unique_ptr<Patterns> patterns_;
  std::vector<Group> groups_;  // one more than rules
  int num_norm_groups_ = 1;
};

}  // namespace trireme::optim
