// What is foreseen from the order in which a pass touched units.
#include "parallel/touch_order.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <set>

namespace trireme::parallel {
namespace {

using Units = std::initializer_list<std::size_t>;

void pass(TouchOrder& order, Units units) {
  order.begin();
  for (const std::size_t unit : units) order.touch(unit);
}

TEST(TouchOrder, foresees_nothing_in_the_first_pass) {
  TouchOrder order;
  order.begin();
  EXPECT_EQ(order.next_absent([](std::size_t) { return false; }), TouchOrder::kNone);
  order.touch(3);
  EXPECT_EQ(order.next_absent([](std::size_t) { return false; }), TouchOrder::kNone);
  EXPECT_EQ(order.distance(3), TouchOrder::kNone);
  EXPECT_FALSE(order.has_changed());
}

TEST(TouchOrder, foresees_what_the_last_pass_did) {
  TouchOrder order;
  pass(order, {0, 1, 2, 1, 0});
  order.begin();
  std::set<std::size_t> present{0, 1};
  const auto is_present = [&](std::size_t unit) { return present.contains(unit); };
  EXPECT_EQ(order.next_absent(is_present), 2U);
  order.touch(0);
  EXPECT_TRUE(order.follows());
  EXPECT_EQ(order.distance(1), 0U);
  EXPECT_EQ(order.distance(2), 1U);
  EXPECT_EQ(order.distance(0), 3U) << "touched again at the end";
  for (const std::size_t unit : {1U, 2U, 1U}) order.touch(unit);
  EXPECT_EQ(order.distance(2), TouchOrder::kNone) << "not again in this pass";
  present.clear();
  EXPECT_EQ(order.next_absent(is_present), 0U);
}

TEST(TouchOrder, counts_repeated_touches_once) {
  TouchOrder order;
  pass(order, {0, 0, 0, 1, 1});
  pass(order, {0, 1});
  EXPECT_TRUE(order.follows());
  EXPECT_FALSE(order.has_changed());
}

TEST(TouchOrder, stops_foreseeing_where_a_pass_goes_another_way_and_learns_it) {
  TouchOrder order;
  pass(order, {0, 1, 2, 3});
  pass(order, {0, 2});
  EXPECT_FALSE(order.follows());
  EXPECT_TRUE(order.has_changed());
  EXPECT_EQ(order.next_absent([](std::size_t) { return false; }), TouchOrder::kNone);
  order.touch(3);
  order.begin();
  order.touch(0);
  EXPECT_TRUE(order.follows());
  EXPECT_EQ(order.next_absent([](std::size_t) { return false; }), 2U) << "the way of the last pass";
}

TEST(TouchOrder, a_longer_pass_is_another_way) {
  TouchOrder order;
  pass(order, {0, 1});
  pass(order, {0, 1, 2});
  EXPECT_TRUE(order.has_changed());
}

}  // namespace
}  // namespace trireme::parallel
