#include "trireme/parallel/norms.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include "kokkos.hpp"
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace trireme::parallel {
namespace {

std::vector<Unit> units() {
  return {{"a", {{"a.w", {130, 129}}, {"a.b", {129}}, {"a.none", {0}}, {"a.big", {5, kBlock}}}},
          {"b", {{"b.w", {3}}}},
          {"c", {{"c.w", {40, 333}}, {"c.b", {40}}}}};
}

// Every element of every unit; padding is zero, as it is in the engine.
std::vector<std::vector<float>> gradients(const Layout& layout) {
  std::vector<std::vector<float>> all;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    auto& gradient = all.emplace_back(static_cast<std::size_t>(layout.unit(u).size));
    for (const Piece& piece : layout.pieces(u, {0, layout.unit(u).size})) {
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const auto at = static_cast<std::uint64_t>(piece.offset + i);
        gradient[at] = unit_float(philox(u, at)[0]) - 0.4F;
      }
    }
  }
  return all;
}

int vectors_apart(const Slot& slot) { return slot.shape.size() < 2 ? 1 : 0; }

std::vector<double> totals(Mesh mesh, int num_groups) {
  const int num_ranks = mesh.num_ranks;
  const Layout layout(units(), mesh);
  const Norms norms(layout, num_groups, num_groups == 1 ? NormGroupOf() : vectors_apart);
  const auto gradient = gradients(layout);
  std::vector<std::vector<double>> by_rank(static_cast<std::size_t>(num_ranks));
  for (int r = 0; r < num_ranks; ++r) {
    for (std::size_t u = 0; u < layout.units().size(); ++u) {
      const Range mine = layout.owned(u, Rank(r));
      norms.append(
          u, mine,
          std::span(gradient[u])
              .subspan(static_cast<std::size_t>(mine.begin), static_cast<std::size_t>(mine.size())),
          by_rank[static_cast<std::size_t>(r)]);
    }
  }
  return norms.total(by_rank);
}

TEST(Norms, are_the_same_bits_on_any_number_of_ranks) {
  for (const int groups : {1, 2}) {
    for (int ranks = 2; ranks < 12; ++ranks) {
      for (int size = 1; size <= ranks; ++size) {
        if (ranks % size != 0) continue;
        EXPECT_EQ(totals({ranks, size}, groups), totals({1, 1}, groups)) << ranks << " ranks in groups of " << size;
      }
    }
  }
}

TEST(Norms, sum_the_squares_of_their_group) {
  const Layout layout(units(), {1, 1});
  const auto gradient = gradients(layout);
  double matrices = 0;
  double vectors = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    for (const Slot& slot : layout.unit(u).slots) {
      for (std::int64_t i = 0; i < slot.size; ++i) {
        const double g = gradient[u][static_cast<std::size_t>(slot.offset + i)];
        (vectors_apart(slot) == 1 ? vectors : matrices) += g * g;
      }
    }
  }
  const std::vector<double> both = totals({3, 3}, 2);
  EXPECT_NEAR(both[0], matrices, 1e-12 * matrices);
  EXPECT_NEAR(both[1], vectors, 1e-12 * vectors);
  EXPECT_NEAR(totals({3, 3}, 1)[0], matrices + vectors, 1e-12 * matrices);
}

TEST(Norms, refuse_a_group_that_does_not_exist) {
  const Layout layout(units(), {1, 1});
  EXPECT_THROW(Norms(layout, 2, [](const Slot&) { return 2; }), Error);
  EXPECT_THROW(Norms(layout, 2, {}), Error);
}

}  // namespace
}  // namespace trireme::parallel
