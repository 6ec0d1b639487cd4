#include "trireme/optim/groups.hpp"

#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Group kBase{
    .lr = 0.1, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.2, .clip_norm = 1};

Groups three() {
  return Groups(kBase, {{.match = "^embed\\.", .lr_multiplier = 0.5, .weight_decay = 0.0},
                        {.match = "norm|bias$", .weight_decay = 0.3},
                        {.match = "head", .betas = {{0.8, 0.9}}, .eps = 1e-6, .clip_norm = 0.25}});
}

TEST(Groups, give_a_parameter_to_the_first_rule_that_matches) {
  const Groups groups = three();
  EXPECT_EQ(groups.find("blocks.0.up.weight"), 0U);
  EXPECT_EQ(groups.find("embed.weight"), 1U);
  EXPECT_EQ(groups.find("embed.norm.bias"), 1U);
  EXPECT_EQ(groups.find("blocks.0.norm.weight"), 2U);
  EXPECT_EQ(groups.find("head.bias"), 2U);
  EXPECT_EQ(groups.find("head.weight"), 3U);
  EXPECT_EQ(groups.find("biased"), 0U);
}

TEST(Groups, fill_what_a_rule_leaves_open_with_the_optimizers_own) {
  const Groups groups = three();
  EXPECT_EQ(groups[1].lr, 0.05);
  EXPECT_EQ(groups[1].eps, 1e-8);
  EXPECT_EQ(groups[3].lr, 0.1);
  EXPECT_EQ(groups[3].eps, 1e-6);
  EXPECT_EQ(groups[3].weight_decay, 0.2);
}

TEST(Groups, spare_vectors_unless_a_rule_says_their_decay) {
  const Groups groups = three();
  EXPECT_EQ(groups[0].decay_of(2), 0.2);
  EXPECT_EQ(groups[0].decay_of(1), 0);
  EXPECT_EQ(groups[0].decay_of(0), 0);
  EXPECT_EQ(groups[2].decay_of(1), 0.3);
  EXPECT_EQ(groups[3].decay_of(1), 0) << "its rule says nothing of decay";
}

TEST(Groups, have_a_norm_of_their_own_where_they_have_a_bound) {
  const Groups groups = three();
  EXPECT_EQ(groups.num_norm_groups(), 2);
  EXPECT_EQ(groups[1].norm_group, 0);
  EXPECT_EQ(groups[3].norm_group, 1);
  EXPECT_EQ(groups.clip_norm(0), 1);
  EXPECT_EQ(groups.clip_norm(1), 0.25);
}

std::string effect_error(const std::vector<GroupRule>& rules) {
  const std::vector<NamedShape> parameters{{"embed.weight", {5, 3}}, {"head.weight", {3, 5}}};
  try {
    Groups(kBase, rules).require_effect(parameters);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kConfig);
    return error.message;
  }
  return "accepted";
}

TEST(Groups, refuse_rules_without_effect) {
  EXPECT_EQ(effect_error({{.match = "embed", .eps = 1e-3}, {.match = "weight", .eps = 1e-4}}),
            "accepted");
  EXPECT_THAT(
      effect_error({{.match = "haed.weight", .eps = 1e-3}}),
      AllOf(HasSubstr("optimizer.groups.0.match"), HasSubstr("did you mean 'head.weight'")));
  EXPECT_THAT(effect_error({{.match = "weight", .eps = 1e-3}, {.match = "embed", .eps = 1e-4}}),
              AllOf(HasSubstr("optimizer.groups.1"), HasSubstr("rules before it")));
}

}  // namespace
}  // namespace trireme::optim
