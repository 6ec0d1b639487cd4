#include "trireme/parallel/plan.hpp"

#include "trireme/base/error.hpp"
#include "trireme/parallel/micro_batches.hpp"
#include "trireme/parallel/team.hpp"

#include <algorithm>

namespace trireme::parallel {

namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kUnitBuffers = 2;         // of gradients, a rank
constexpr std::int64_t kPresentUnits = 3;        // of gathered weights, a node
constexpr std::int64_t kRecordHeader = 4096;     // of everything on disk
constexpr std::int64_t kStateRun = 32 * kBlock;  // elements of a record of state
constexpr std::int64_t kUnitPayload = 1 << 20;   // bytes of a record of a unit
constexpr std::int64_t kRing = 3;                // records in memory while a file streams

comm::Topology topology_of(const Machine& machine, Rank rank) {
  comm::Topology topology;
  topology.first_rank.clear();
  for (int first = 0; first < machine.num_ranks; first += machine.ranks_per_node)
    topology.first_rank.push_back(first);
  topology.num_nodes = static_cast<int>(topology.first_rank.size());
  topology.first_rank.push_back(machine.num_ranks);
  topology.node = topology.node_of(static_cast<int>(rank.value));
  return topology;
}

// A rank with a device of its own is a node of one rank.
Machine nodes_for(const EngineOptions& options, const Machine& machine) {
  return {machine.num_ranks, options.compute_on == ComputeOn::kHost ? machine.ranks_per_node : 1};
}

// A rank's view of the job, and sums over units that several parts of the plan need.
class Planner {
 public:
  Planner(const std::vector<Unit>& units, const EngineOptions& options, const Machine& machine,
          Rank rank, int passes)
      : options_(options),
        row_(strategy(options.strategy)),
        topology_(topology_of(nodes_for(options, machine), rank)),
        layout_(units,
                make_mesh(row_, machine.num_ranks, options.shard_size,
                          machine.num_ranks % machine.ranks_per_node == 0 ? machine.ranks_per_node
                          : machine.num_ranks < machine.ranks_per_node    ? machine.num_ranks
                                                                          : 0)),
        me_(rank),
        passes_(passes),
        group_(topology_, layout_.mesh().rank_at(layout_.mesh().group_of(rank), 0),
               layout_.mesh().shard_size, rank),
        world_(topology_, Rank(0), machine.num_ranks, rank),
        by_unit_(row_.reduce_at == ReduceAt::kUnit),
        assignment_(assign_micro_batches(options.num_micro_batches, machine.num_ranks,
                                         by_unit_ ? layout_.mesh().shard_size : 1, rank)) {}

  RankPlan plan() {
    weights();
    gradients();
    state();
    return plan_;
  }

 private:
  std::int64_t work_bytes(std::size_t unit, std::int64_t elements) const {
    const bool wide = layout_.unit(unit).keeps_fp32 || options_.compute == at::kFloat;
    return elements * (wide ? 4 : 2);
  }
  template <class Value>
  std::int64_t largest(const Value& value) const {
    std::int64_t result = 0;
    for (std::size_t u = 0; u < layout_.units().size(); ++u) result = std::max(result, value(u));
    return result;
  }
  template <class Value>
  std::int64_t sum(const Value& value) const {
    std::int64_t result = 0;
    for (std::size_t u = 0; u < layout_.units().size(); ++u) result += value(u);
    return result;
  }
  bool trains(std::size_t unit) const { return layout_.unit(unit).trains; }

  bool gathers() const {
    if (row_.work == Placement::kReplicated) return false;
    for (int group = 0; group < layout_.mesh().num_groups(); ++group) {
      const Team team(topology_, layout_.mesh().rank_at(group, 0), layout_.mesh().shard_size,
                      layout_.mesh().rank_at(group, 0));
      if (!team.on_one_node()) return true;
    }
    return options_.work_on_disk;
  }

  // A file of units' bytes: on disk, and in memory while it is used.
  template <class Size>
  void unit_file(const Size& size) {
    const std::int64_t most = largest(size);
    const std::int64_t payload =
        std::clamp((most + 4095) / 4096 * 4096, std::int64_t{4096}, kUnitPayload);
    const auto records = [&](std::int64_t bytes) { return (bytes + payload - 1) / payload; };
    const std::int64_t record = payload + kRecordHeader;
    plan_.memory.disk.value += sum([&](std::size_t u) { return records(size(u)); }) * record;
    plan_.memory.transient.value += (kRing + records(most)) * record;
  }

  void weights() {
    const auto whole = [&](std::size_t u) { return work_bytes(u, layout_.unit(u).size); };
    const auto shard = [&](std::size_t u) { return work_bytes(u, layout_.shard(u, me_).size()); };
    if (!gathers()) {
      plan_.memory.work.value = sum(whole) / world_.num_locals();
      const bool all_update = row_.state == Placement::kReplicated;
      if (all_update || layout_.mesh().num_groups() > 1) return;
      plan_.sent_weights.value =
          sum([&](std::size_t u) {
            return trains(u) ? work_bytes(u, layout_.owned(u, me_).size()) : 0;
          }) *
          (world_.num_nodes() - 1);
      return;
    }
    const auto changing = [&](std::size_t u) { return layout_.unit(u).permanent ? 0 : whole(u); };
    const auto staying = [&](std::size_t u) { return layout_.unit(u).permanent ? whole(u) : 0; };
    const std::int64_t places =
        options_.reshard_after_forward ? kPresentUnits * largest(changing) : sum(changing);
    plan_.memory.transient.value += (places + sum(staying)) / group_.num_locals();
    if (options_.work_on_disk) {
      plan_.memory.transient.value += largest(shard);
      unit_file(shard);
    } else {
      plan_.memory.work.value = sum(shard);
    }
    // A unit that fits beside the last one of forward is there already when backward begins; that
    // is not counted.
    const std::int64_t times =
        options_.reshard_after_forward ? passes_ * assignment_.num_turns() : 1;
    plan_.sent_weights.value =
        sum([&](std::size_t u) { return layout_.unit(u).permanent ? 0 : shard(u); }) * times *
        (group_.num_nodes() - 1);
  }

  // Of a reduction of units over a team, by range of a rank.
  template <class RangeOf>
  void reducer(const Team& team, const RangeOf& range_of, std::int64_t reductions) {
    const bool narrow = options_.reduce == at::kBFloat16 && !team.on_one_node();
    const std::int64_t buffers = largest([&](std::size_t u) {
      if (!trains(u)) return std::int64_t{0};
      std::int64_t needed = range_of(u, me_).size() * team.num_nodes();
      for (const Rank owner : team.remote_owners()) needed += range_of(u, owner).size();
      return needed;
    });
    plan_.memory.transient.value += (kFloat + (narrow ? 2 : 0)) * buffers;
    plan_.sent_gradients.value += (narrow ? 2 : kFloat) * reductions * sum([&](std::size_t u) {
                                    std::int64_t sent = 0;
                                    for (const Rank owner : team.remote_owners())
                                      sent += range_of(u, owner).size();
                                    return trains(u) ? sent : 0;
                                  });
  }

  void gradients() {
    const auto full = [&](std::size_t u) { return trains(u) ? layout_.unit(u).size : 0; };
    const auto owned = [&](std::size_t u) { return trains(u) ? layout_.owned(u, me_).size() : 0; };
    const auto shard = [&](std::size_t u) { return trains(u) ? layout_.shard(u, me_).size() : 0; };
    std::int64_t turns = 1;
    for (const auto& round : assignment_.rounds)
      turns = std::max(turns, static_cast<std::int64_t>(round.size()));
    const std::int64_t rounds = assignment_.num_rounds();
    const std::int64_t over_rounds = rounds > 1 ? kFloat * sum(owned) * counter_levels(rounds) : 0;
    if (!by_unit_) {
      plan_.memory.grad.value = kFloat * sum(full) * counter_levels(turns) + over_rounds;
      reducer(
          world_, [&](std::size_t u, Rank rank) { return layout_.owned(u, rank); }, rounds);
      if (row_.state == Placement::kReplicated)
        plan_.sent_gradients.value += kFloat * sum(owned) * (world_.num_nodes() - 1);
      return;
    }
    plan_.memory.transient.value += kFloat * kUnitBuffers * largest(full);
    reducer(
        group_, [&](std::size_t u, Rank rank) { return layout_.shard(u, rank); },
        assignment_.num_turns());
    if (options_.grad_on_disk) {
      const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
      const std::int64_t most = up(up(options_.num_micro_batches, layout_.mesh().num_groups()),
                                   layout_.mesh().shard_size);
      plan_.memory.transient.value += kFloat * largest(shard) * counter_levels(turns);
      unit_file([&](std::size_t u) { return kFloat * shard(u) * counter_levels(most); });
    } else {
      plan_.memory.grad.value = kFloat * sum(shard) * counter_levels(turns);
    }
    const std::int64_t groups = layout_.mesh().num_groups();
    if (groups == 1) return;
    plan_.memory.grad.value += over_rounds;
    const bool narrow = options_.reduce == at::kBFloat16 && topology_.num_nodes > 1;
    plan_.memory.transient.value += kFloat * largest(owned) * groups;
    if (narrow) plan_.memory.transient.value += 2 * (largest(owned) * groups + largest(shard));
    // Its parts of others' shares each round, and its own total at the end; only between nodes.
    for (int group = 0; group < groups; ++group) {
      const Rank replica = layout_.mesh().rank_at(group, layout_.mesh().place_of(me_));
      if (topology_.node_of(static_cast<int>(replica.value)) == topology_.node) continue;
      plan_.sent_gradients.value += (narrow ? 2 : kFloat) * rounds * sum([&](std::size_t u) {
                                      return trains(u) ? layout_.owned(u, replica).size() : 0;
                                    }) +
                                    kFloat * sum(owned);
    }
  }

  void state() {
    const auto moment = static_cast<std::int64_t>(c10::elementSize(options_.moments));
    for (const bool training : {true, false}) {
      const std::int64_t element = kFloat + (training ? options_.num_moments * moment : 0);
      const auto held = [&](std::size_t u) {
        return trains(u) == training ? layout_.shard(u, me_).size() : 0;
      };
      if (!options_.state_on_disk) {
        plan_.memory.master.value += kFloat * sum(held);
        plan_.memory.moments.value += (element - kFloat) * sum(held);
        continue;
      }
      std::int64_t records = 0;
      std::int64_t most = 0;
      for (std::size_t u = 0; u < layout_.units().size(); ++u) {
        if (trains(u) != training) continue;
        const int first = layout_.first_position(u, me_);
        for (int p = first; p < first + layout_.mesh().num_groups(); ++p) {
          const std::int64_t size = layout_.part(u, p).size();
          records += (size + kStateRun - 1) / kStateRun;
          most = std::max(most, size);
        }
      }
      if (records == 0) continue;
      const std::int64_t record = std::min(most, kStateRun) * element + kRecordHeader;
      plan_.memory.disk.value += records * record;
      plan_.memory.transient.value += (kRing + 1) * record;
    }
  }

  const EngineOptions& options_;
  const Strategy& row_;
  comm::Topology topology_;
  Layout layout_;
  Rank me_;
  int passes_;
  Team group_;
  Team world_;
  bool by_unit_;
  Assignment assignment_;
  RankPlan plan_;
};

}  // namespace

RankPlan plan_rank(const std::vector<Unit>& units, const EngineOptions& options,
                   const Machine& machine, Rank rank, int passes) {
  ensure(machine.ranks_per_node > 0 && rank.value < machine.num_ranks, "a rank of the machine");
  return Planner(units, options, machine, rank, passes).plan();
}

Bytes checkpoint_size(const std::vector<Unit>& units, const EngineOptions& options) {
  const Layout layout(units, {1, 1});
  const auto moment = static_cast<std::int64_t>(c10::elementSize(options.moments));
  Bytes total;
  for (const Unit& unit : layout.units()) {
    for (const Slot& slot : unit.slots)
      total.value += slot.size * (kFloat + (unit.trains ? options.num_moments * moment : 0));
  }
  return total;
}

}  // namespace trireme::parallel
