#include "trireme/parallel/weights.hpp"

#include "parallel/fabric.hpp"
#include "parallel/gathered_weights.hpp"
#include "parallel/resident_weights.hpp"
#include <torch/torch.h>

namespace trireme::parallel {

namespace {

bool every_group_is_on_one_node(const comm::Topology& topology, const Mesh& mesh) {
  for (int group = 0; group < mesh.num_groups(); ++group) {
    const Rank first = mesh.rank_at(group, 0);
    const Rank last = mesh.rank_at(group, mesh.shard_size - 1);
    if (topology.node_of(static_cast<int>(first.value)) !=
        topology.node_of(static_cast<int>(last.value))) {
      return false;
    }
  }
  return true;
}

}  // namespace

at::Tensor Weights::view_of(std::size_t unit, std::byte* data, const at::Tensor& parameter) const {
  return at::from_blob(data, parameter.sizes(), at::TensorOptions().dtype(type_of(unit)));
}

std::unique_ptr<Weights> make_weights(Fabric& fabric, const Layout& layout,
                                      const Strategy& strategy, const WeightOptions& options) {
  const bool sharded = strategy.work == Placement::kFlatShard;
  const bool together = every_group_is_on_one_node(fabric.topology(), layout.mesh());
  if (sharded && (!together || !options.disk.folder.empty()))
    return std::make_unique<GatheredWeights>(fabric, layout, options);
  return std::make_unique<ResidentWeights>(fabric, layout, strategy, options.compute);
}

}  // namespace trireme::parallel
