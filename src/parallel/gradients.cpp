#include "trireme/parallel/gradients.hpp"

#include "trireme/base/error.hpp"

#include "parallel/fabric.hpp"
#include "parallel/step_gradients.hpp"
#include "parallel/unit_gradients.hpp"
#include <fmt/format.h>

#include <algorithm>

namespace trireme::parallel {

Gradients::Gradients(const Layout& layout) : layout_(layout) {
  for (const Unit& unit : layout.units()) taken_.emplace_back(unit.slots.size(), false);
  used_ = taken_;
}

void Gradients::begin_step(const Assignment& /*assignment*/) {
  for (auto& slots : used_) std::fill(slots.begin(), slots.end(), false);
}

std::vector<std::pair<std::size_t, std::size_t>> Gradients::unused() const {
  std::vector<std::pair<std::size_t, std::size_t>> result;
  for (std::size_t u = 0; u < used_.size(); ++u) {
    for (std::size_t s = 0; s < used_[u].size(); ++s) {
      if (layout_.unit(u).trains && !used_[u][s]) result.emplace_back(u, s);
    }
  }
  return result;
}

void Gradients::begin_turn(bool idle) {
  idle_turn_ = idle;
  for (auto& slots : taken_) std::fill(slots.begin(), slots.end(), false);
}

void Gradients::take(std::size_t unit, std::size_t slot, const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided) {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("parameter {} has a sparse gradient", layout_.unit(unit).slots[slot].name),
        "make the embedding with sparse(false)");
  }
  ensure(!taken_[unit][slot], "a parameter's gradient is complete once a backward pass");
  taken_[unit][slot] = true;
  if (!idle_turn_) used_[unit][slot] = true;
  take_trained(unit, slot, gradient);
}

bool Gradients::any_taken() const {
  return std::ranges::any_of(taken_, [](const std::vector<bool>& slots) {
    return std::find(slots.begin(), slots.end(), true) != slots.end();
  });
}

void Gradients::end_turn() {
  for (std::size_t u = layout_.units().size(); u-- > 0;) {
    if (!layout_.unit(u).trains) continue;
    std::vector<std::size_t> missing;
    for (std::size_t s = 0; s < taken_[u].size(); ++s) {
      if (!taken_[u][s]) missing.push_back(s);
    }
    end_unit(u, missing);
  }
  end_of_turn();
}

std::unique_ptr<Gradients> make_gradients(Fabric& fabric, const Layout& layout,
                                          const Strategy& strategy,
                                          const GradientOptions& options) {
  if (strategy.reduce_at == ReduceAt::kUnit)
    return std::make_unique<UnitGradients>(fabric, layout, options);
  ensure(options.disk.folder.empty(), "only sums of shards are kept on disk");
  return std::make_unique<StepGradients>(fabric, layout, strategy, options);
}

}  // namespace trireme::parallel
