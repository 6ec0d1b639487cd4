// The whole model in the node's window. Private to the room.
#pragma once

#include "trireme/parallel/team.hpp"
#include "trireme/parallel/weights.hpp"

#include "parallel/fabric.hpp"

#include <memory>
#include <vector>

namespace trireme::parallel {

class ResidentWeights : public Weights {
 public:
  ResidentWeights(Fabric& fabric, const Layout& layout, const Strategy& strategy,
                  at::ScalarType compute);

  bool resident() const override { return true; }
  void attach(std::size_t unit, std::vector<at::Tensor> parameters) override;
  std::byte* target(std::size_t unit, std::int64_t offset) override;
  void publish(bool frozen_too) override;
  Bytes held_bytes() const override;

 private:
  std::byte* window_at(std::size_t unit, std::int64_t offset) const;
  bool writes(std::size_t unit, int position) const;
  void send_to_other_nodes(std::size_t unit);

  Fabric& fabric_;
  Team world_;
  bool all_update_;              // every rank has all state
  std::vector<std::size_t> at_;  // byte offset of each unit in the window
  std::unique_ptr<Window> window_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace trireme::parallel
