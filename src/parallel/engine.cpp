#include "trireme/parallel/engine.hpp"

#include "trireme/base/deadline.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/convert.hpp"
#include "trireme/parallel/gradients.hpp"
#include "trireme/parallel/team.hpp"
#include "trireme/parallel/weights.hpp"

#include "parallel/buffers.hpp"
#include "parallel/fabric.hpp"
#include "parallel/state_store.hpp"
#include "parallel/unit_file.hpp"
#include "parallel/weight_guard.hpp"
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

namespace trireme::parallel {

namespace {

// Takes the gradient away as soon as autograd has finished it.
class TakeGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit TakeGradient(std::function<void(const at::Tensor&)> take) : take_(std::move(take)) {}
  void operator()(const at::Tensor& parameter) override {
    take_(parameter.grad());
    parameter.mutable_grad().reset();
  }

 private:
  std::function<void(const at::Tensor&)> take_;
};

// The message of Engine::sums: a head, the losses of the rank's micro-batches, the parameters that
// it did not use, the square sums of its blocks.
struct Head {
  std::int64_t num_losses;
  std::int64_t num_unused;
  std::int64_t stop;
  std::int64_t peak_resident;
  std::int64_t buffers_changed;
};
struct LossEntry {
  std::int64_t micro_batch;
  std::int64_t num_targets;
  double loss;
};

template <class T>
void append(comm::ByteVector& message, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  message.insert(message.end(), bytes.begin(), bytes.end());
}

// Reads values from the front of a message.
class MessageReader {
 public:
  explicit MessageReader(const comm::ByteVector& message) : rest_(message) {}
  template <class T>
  std::vector<T> take(std::size_t count) {
    std::vector<T> values(count);
    std::memcpy(values.data(), rest_.data(), count * sizeof(T));
    rest_ = rest_.subspan(count * sizeof(T));
    return values;
  }
  template <class T>
  std::vector<T> take_all() {
    return take<T>(rest_.size() / sizeof(T));
  }

 private:
  std::span<const std::byte> rest_;
};

DiskOptions disk_if(bool used, const DiskOptions& disk) { return used ? disk : DiskOptions{}; }

// Throws Config for what a strategy keeps whole.
const Strategy& checked(const Strategy& row, const EngineOptions& options) {
  const auto refuse = [&](const char* field, const char* which) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: nvme needs shards, which {} has not", field, row.name),
                fmt::format("set it to none, or use {}", which));
  };
  if (options.work_on_disk && row.work == Placement::kReplicated)
    refuse("offload.work", "zero3 or hsdp");
  if (options.grad_on_disk && row.grad == Placement::kReplicated)
    refuse("offload.grad", "zero2, zero3 or hsdp");
  return row;
}

int ranks_per_node(const comm::Topology& topology) {
  for (int node = 1; node < topology.num_nodes; ++node) {
    if (topology.ranks_on(node) != topology.ranks_on(0)) return 0;
  }
  return topology.ranks_on(0);
}

// Ranks that add a micro-batch's gradients together.
int team_size(const Strategy& strategy, const Mesh& mesh) {
  return strategy.reduce_at == ReduceAt::kUnit ? mesh.shard_size : 1;
}

// Why sums depend on where ranks are: those of a node are added before those of nodes.
std::string why_nodes_are_inexact(const comm::Topology& topology, const Mesh& mesh, int team,
                                  Rank me) {
  const auto inexact = [&](int size) {
    return Team(topology, Rank(me.value / size * size), size, me).inexact();
  };
  return team > 1 ? inexact(team) : inexact(mesh.num_ranks);
}

void narrow(std::span<const float> from, std::byte* to, at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return kernels::narrow_bf16(from, {reinterpret_cast<kernels::Half*>(to), from.size()});
    case at::kHalf:
      return kernels::narrow_fp16(from, {reinterpret_cast<kernels::Half*>(to), from.size()});
    default:
      std::memcpy(to, from.data(), from.size_bytes());
  }
}

}  // namespace

struct Engine::Impl {
  comm::Session& session;
  EngineOptions options;
  const Strategy& row;
  std::unique_ptr<Fabric> fabric;
  std::vector<UnitParameters> units;
  Layout layout;
  Norms norms;
  Assignment usual_assignment;
  Assignment assignment;  // of the step at hand
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<StateStore> state;
  Buffers buffers;
  WeightGuard guard;

  std::vector<std::size_t> first_parameter;  // by unit
  std::size_t num_parameters = 0;
  std::vector<LossEntry> losses;
  std::int64_t current_step = 0;
  // Where a step in pieces stands.
  std::size_t round = 0;
  std::size_t turn = 0;  // of the round; behind its last one the round is over
  bool counts = true;    // the micro-batch at hand
  bool open = false;     // between its begin and its end
  double comm_seconds = 0;

  Impl(comm::Session& session, const ModuleTree& tree, const EngineOptions& options)
      : session(session),
        options(options),
        row(checked(strategy(options.strategy), options)),
        fabric(make_fabric(session, options.compute_on)),
        units(find_units(tree, options.units)),
        layout(describe(units), make_mesh(row, session.world().size(), options.shard_size,
                                          ranks_per_node(session.topology()))),
        norms(layout, options.num_norm_groups, options.norm_group_of),
        usual_assignment(assign(options.num_micro_batches)),
        assignment(usual_assignment),
        weights(make_weights(*fabric, layout, row,
                             {options.compute, !options.reshard_after_forward,
                              disk_if(options.work_on_disk, options.disk)})),
        gradients(make_gradients(
            *fabric, layout, row,
            {options.num_micro_batches, options.dealt, disk_if(options.grad_on_disk, options.disk),
             options.reduce == at::kBFloat16})),
        state(make_state_store(layout, me(), options.num_moments, options.moments,
                               disk_if(options.state_on_disk, options.disk))),
        buffers(tree) {
    const auto idle = [this] {
      weights->progress();
      gradients->progress();
    };
    weights->set_idle(idle);
    gradients->set_idle(idle);
    for (const UnitParameters& unit : units) {
      first_parameter.push_back(num_parameters);
      num_parameters += unit.parameters.size();
    }
  }

  Rank me() const { return session.world().rank(); }

  Assignment assign(std::int64_t num_micro_batches) const {
    const int team = team_size(row, layout.mesh());
    const int ranks = session.world().size();
    Assignment result = options.dealt
                            ? deal_micro_batches(num_micro_batches / ranks, ranks, team, me())
                            : assign_micro_batches(num_micro_batches, ranks, team, me());
    if (result.inexact.empty() && options.reduce == at::kBFloat16 &&
        fabric->topology().num_nodes > 1)
      result.inexact = "sums travel between nodes in bf16";
    if (result.inexact.empty())
      result.inexact = why_nodes_are_inexact(fabric->topology(), layout.mesh(), team, me());
    return result;
  }

  void initialise(InitialValues& initial) {
    state->for_each(
        [&](const StateChunk& chunk) {
          for (const Piece& piece : layout.pieces(chunk.unit, chunk.range)) {
            initial.fill(units[chunk.unit].parameters[piece.slot],
                         units[chunk.unit].names[piece.slot], piece.begin, master_of(chunk, piece));
          }
        },
        Access::kWrite);
  }

  static std::span<float> master_of(const StateChunk& chunk, const Piece& piece) {
    return chunk.master.subspan(static_cast<std::size_t>(piece.offset - chunk.range.begin),
                                static_cast<std::size_t>(piece.count));
  }

  Moments moments_of(const StateChunk& chunk, const Piece& piece) const {
    Moments at = chunk.moments;
    const auto elements = static_cast<std::size_t>(piece.offset - chunk.range.begin);
    for (std::byte*& moment : at) {
      if (moment != nullptr) moment += elements * c10::elementSize(options.moments);
    }
    return at;
  }

  void attach() {
    for (std::size_t u = 0; u < units.size(); ++u) {
      weights->attach(u, units[u].parameters);
      for (std::size_t s = 0; s < units[u].parameters.size(); ++s) {
        at::Tensor& parameter = units[u].parameters[s];
        parameter.mutable_grad().reset();
        if (units[u].trains) take_gradients_of(parameter, u, s);
      }
    }
  }

  void take_gradients_of(const at::Tensor& parameter, std::size_t unit, std::size_t slot) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter, std::make_unique<TakeGradient>([this, unit, slot](const at::Tensor& gradient) {
          if (options.dealt && !open) throw_late(unit, slot);
          const auto start = Clock::now();
          gradients->take(unit, slot, gradient);
          comm_seconds += seconds_since(start);
        }));
  }

  [[noreturn]] void throw_late(std::size_t unit, std::size_t slot) const {
    throw Error(ErrorKind::kConfig,
                fmt::format("a gradient reached {} outside of a micro-batch of its model",
                            units[unit].names[slot]),
                "run forward through what prepare() returned, once for every backward");
  }

  // Observes operators only where weights come and go.
  template <class Action>
  void with_weights(Pass pass, const Action& action) {
    weights->begin_pass(pass);
    std::optional<ObserveOperators> observe;
    if (!weights->resident()) observe.emplace(*weights);
    action();
  }

  void begin_step(Step step, const Assignment& of_step) {
    guard.check_weights();
    guard.check_list();
    assignment = of_step;
    current_step = step.value;
    losses.clear();
    gradients->begin_step(assignment);
    buffers.begin_step();
  }

  void end_round() {
    const auto start = Clock::now();
    session.node().set_place("reduce", current_step);
    gradients->end_round();
    comm_seconds += seconds_since(start);
  }

  void run_micro_batch(std::int64_t index, bool idle,
                       const std::function<MicroBatchLoss(std::int64_t)>& loss_of) {
    gradients->begin_turn(idle);
    buffers.begin_micro_batch();
    with_weights(Pass::kTraining, [&] {
      const MicroBatchLoss result = loss_of(index);
      if (result.loss.numel() != 1) {
        throw Error(ErrorKind::kConfig, "the loss of a micro-batch is not a single number",
                    "sum it");
      }
      guard.check_weights();
      session.node().set_place("backward", current_step);
      result.loss.backward();
      if (!idle) losses.push_back({index, result.num_targets, result.loss.item<double>()});
    });
    buffers.end_micro_batch(index, !idle);
    const auto start = Clock::now();
    gradients->end_turn();
    comm_seconds += seconds_since(start);
  }

  std::vector<double> square_sums() {
    std::vector<double> sums;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (!units[u].trains) continue;
      const Range mine = layout.owned(u, me());
      norms.append(u, mine, gradients->sum(u, mine), sums);
    }
    return sums;
  }

  // Returns the index of the first parameter of this rank's parts with a gradient that is not
  // finite, or the number of all.
  std::size_t first_non_finite() const {
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (!units[u].trains) continue;
      for (const Piece& piece : layout.pieces(u, layout.owned(u, me()))) {
        for (const float g : gradients->sum(u, {piece.offset, piece.offset + piece.count})) {
          if (!std::isfinite(g)) return first_parameter[u] + piece.slot;
        }
      }
    }
    return num_parameters;
  }

  const std::string& name_of(std::size_t parameter) const {
    const auto after = std::upper_bound(first_parameter.begin(), first_parameter.end(), parameter);
    const auto unit = static_cast<std::size_t>(after - first_parameter.begin()) - 1;
    return units[unit].names[parameter - first_parameter[unit]];
  }
};

Engine::Engine(comm::Session& session, torch::nn::Module& module, InitialValues& initial,
               const EngineOptions& options)
    : Engine(session, tree_of(module), initial, options) {
  impl_->guard.watch([&module] { return module.parameters(); });
}

Engine::Engine(comm::Session& session, const ModuleTree& tree, InitialValues& initial,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(session, tree, options)) {
  impl_->initialise(initial);
  impl_->attach();
  impl_->guard.remember(impl_->units);
  refresh_work();
}

Engine::~Engine() {
  if (impl_ == nullptr) return;
  // The module may outlive the engine: its parameters must not call into it.
  for (UnitParameters& unit : impl_->units) {
    for (at::Tensor& parameter : unit.parameters)
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void Engine::accumulate(Step step, const std::function<MicroBatchLoss(std::int64_t)>& loss_of,
                        std::int64_t num_micro_batches) {
  Impl& engine = *impl_;
  ensure(num_micro_batches <= engine.options.num_micro_batches,
         "a step has at most its usual number of micro-batches");
  engine.begin_step(
      step, num_micro_batches == 0 ? engine.usual_assignment : engine.assign(num_micro_batches));
  for (const std::vector<std::int64_t>& round : engine.assignment.rounds) {
    for (const std::int64_t micro_batch : round) {
      engine.session.node().set_place("forward", step.value);
      const bool idle = micro_batch == kIdleTurn;
      engine.run_micro_batch(idle ? 0 : micro_batch, idle, loss_of);
    }
    engine.end_round();
  }
}

void Engine::begin_step(Step step) {
  Impl& engine = *impl_;
  ensure(engine.options.dealt, "the engine was made for a step in pieces");
  engine.begin_step(step, engine.usual_assignment);
  engine.round = 0;
  engine.turn = 0;
}

void Engine::begin_micro_batch(bool counts) {
  Impl& engine = *impl_;
  ensure(engine.round < engine.assignment.rounds.size(), "a step has no more turns than foreseen");
  engine.session.node().set_place("forward", engine.current_step);
  engine.counts = counts;
  engine.open = true;
  engine.gradients->begin_turn(!counts);
  engine.buffers.begin_micro_batch();
  engine.weights->begin_pass(Pass::kTraining);
}

bool Engine::has_gradients() const { return impl_->open && impl_->gradients->any_taken(); }

void Engine::end_micro_batch(const MicroBatchLoss& result) {
  Impl& engine = *impl_;
  const auto& round = engine.assignment.rounds[engine.round];
  const std::int64_t index = round[engine.turn];
  engine.open = false;
  if (engine.counts)
    engine.losses.push_back({index, result.num_targets, result.loss.item<double>()});
  engine.buffers.end_micro_batch(index, engine.counts);
  const auto start = Clock::now();
  engine.gradients->end_turn();
  engine.comm_seconds += seconds_since(start);
  if (++engine.turn < round.size()) return;
  engine.end_round();
  ++engine.round;
  engine.turn = 0;
}

void Engine::end_step() {
  Impl& engine = *impl_;
  if (engine.turn > 0) engine.end_round();
  const auto start = Clock::now();
  engine.gradients->finish();
  engine.comm_seconds += seconds_since(start);
}

void Engine::discard() {
  comm::Communicator& world = impl_->session.world();
  const char mine = impl_->buffers.changed() ? 1 : 0;
  for (const char theirs : comm::all_gather_values(world, mine, "discard gradients")) {
    if (theirs == 0) continue;
    return impl_->buffers.apply(world);
  }
}

void Engine::begin_evaluation() { impl_->weights->begin_pass(Pass::kEvaluation); }

OperatorObserver* Engine::observer() {
  return impl_->weights->resident() ? nullptr : impl_->weights.get();
}

StepSums Engine::sums(const RankNote& note) {
  Impl& engine = *impl_;
  comm::Communicator& world = engine.session.world();
  const std::vector<double> squares = engine.square_sums();
  std::vector<std::int64_t> unused;
  for (const auto& [unit, slot] : engine.gradients->unused())
    unused.push_back(static_cast<std::int64_t>(engine.first_parameter[unit] + slot));
  const auto start = Clock::now();
  const Head head{static_cast<std::int64_t>(engine.losses.size()),
                  static_cast<std::int64_t>(unused.size()), note.stop ? 1 : 0,
                  note.peak_resident.value, engine.buffers.changed() ? 1 : 0};
  comm::ByteVector message;
  append(message, std::span(&head, 1));
  append(message, std::span<const LossEntry>(engine.losses));
  append(message, std::span<const std::int64_t>(unused));
  append(message, std::span<const double>(squares));

  StepSums result;
  bool buffers_changed = false;
  std::vector<LossEntry> losses;
  std::set<std::int64_t> unused_everywhere(unused.begin(), unused.end());
  std::vector<std::vector<double>> by_rank;
  for (const comm::ByteVector& bytes : world.all_gather(message, "losses and norm")) {
    MessageReader reader(bytes);
    const Head theirs = reader.take<Head>(1)[0];
    result.stop = result.stop || theirs.stop != 0;
    result.peak_resident = std::max(result.peak_resident, Bytes(theirs.peak_resident));
    buffers_changed = buffers_changed || theirs.buffers_changed != 0;
    const auto their_losses = reader.take<LossEntry>(static_cast<std::size_t>(theirs.num_losses));
    losses.insert(losses.end(), their_losses.begin(), their_losses.end());
    const auto their_unused =
        reader.take<std::int64_t>(static_cast<std::size_t>(theirs.num_unused));
    const std::set<std::int64_t> also(their_unused.begin(), their_unused.end());
    std::erase_if(unused_everywhere, [&](std::int64_t p) { return !also.contains(p); });
    by_rank.push_back(reader.take_all<double>());
  }
  std::sort(losses.begin(), losses.end(),
            [](const LossEntry& a, const LossEntry& b) { return a.micro_batch < b.micro_batch; });
  for (const LossEntry& entry : losses) {
    result.loss += entry.loss;
    result.num_targets += entry.num_targets;
  }
  for (const std::int64_t parameter : unused_everywhere)
    result.unused.push_back(engine.name_of(static_cast<std::size_t>(parameter)));
  result.square_norms = engine.norms.total(by_rank);
  for (const double part : result.square_norms) result.square_norm += part;
  if (buffers_changed) engine.buffers.apply(world);
  engine.comm_seconds += seconds_since(start);
  if (!std::isfinite(result.square_norm)) {
    std::size_t first = engine.first_non_finite();
    for (const std::size_t theirs : comm::all_gather_values(world, first, "non-finite gradients"))
      first = std::min(first, theirs);
    result.non_finite =
        first < engine.num_parameters ? engine.name_of(first) : "(the norm overflows)";
  }
  return result;
}

void Engine::for_each_update(const std::function<void(const UpdatePiece&)>& update, Access access) {
  Impl& engine = *impl_;
  const auto visit = [&](const StateChunk& chunk) {
    const Unit& unit = engine.layout.unit(chunk.unit);
    if (!unit.trains) return;
    for (const Piece& piece : engine.layout.pieces(chunk.unit, chunk.range)) {
      UpdatePiece part;
      part.slot = &unit.slots[piece.slot];
      part.parameter = engine.first_parameter[chunk.unit] + piece.slot;
      part.begin = piece.begin;
      part.element = static_cast<std::uint64_t>(unit.first_block * kBlock + piece.offset);
      part.grad = engine.gradients->sum(chunk.unit, {piece.offset, piece.offset + piece.count});
      part.master = Impl::master_of(chunk, piece);
      part.moments = engine.moments_of(chunk, piece);
      if (access == Access::kWrite) part.work = engine.weights->target(chunk.unit, piece.offset);
      part.work_type = engine.weights->type_of(chunk.unit);
      update(part);
    }
  };
  engine.state->for_each(visit, access);
}

void Engine::publish() {
  const auto start = Clock::now();
  impl_->weights->publish(/*frozen_too=*/false);
  impl_->comm_seconds += seconds_since(start);
}

void Engine::evaluate(const std::function<void()>& forward) {
  const at::NoGradGuard no_grad;
  impl_->session.node().set_place("evaluate", impl_->current_step);
  impl_->with_weights(Pass::kEvaluation, forward);
}

void Engine::refresh_work() {
  Impl& engine = *impl_;
  // Nobody may be reading the old weights.
  engine.session.world().barrier("refresh weights");
  const auto visit = [&](const StateChunk& chunk) {
    for (const Piece& piece : engine.layout.pieces(chunk.unit, chunk.range)) {
      std::byte* const work = engine.weights->target(chunk.unit, piece.offset);
      if (work != nullptr)
        narrow(Impl::master_of(chunk, piece), work, engine.weights->type_of(chunk.unit));
    }
  };
  engine.state->for_each(visit, Access::kRead);
  engine.weights->publish(/*frozen_too=*/true);
}

const Layout& Engine::layout() const { return impl_->layout; }
const Assignment& Engine::assignment() const { return impl_->assignment; }
at::ScalarType Engine::compute() const { return impl_->options.compute; }
int Engine::num_moments() const { return impl_->options.num_moments; }
at::ScalarType Engine::moments() const { return impl_->options.moments; }

std::vector<const Slot*> Engine::parameters() const {
  std::vector<const Slot*> all;
  for (const Unit& unit : impl_->layout.units()) {
    for (const Slot& slot : unit.slots) all.push_back(&slot);
  }
  return all;
}

std::vector<StatePiece> Engine::state(bool owned) {
  Impl& engine = *impl_;
  std::vector<StatePiece> pieces;
  for (std::size_t u = 0; u < engine.units.size(); ++u) {
    const Range range = owned ? engine.layout.owned(u, engine.me()) : engine.state->held(u);
    for (const Piece& piece : engine.layout.pieces(u, range)) {
      const StateChunk chunk = engine.state->at(u, {piece.offset, piece.offset + piece.count});
      pieces.push_back({engine.first_parameter[u] + piece.slot, piece.begin, piece.count,
                        chunk.master.data(), chunk.moments});
    }
  }
  return pieces;
}

namespace {

struct StatePlace {
  std::size_t unit;
  Range range;  // in the unit
};

// Where `bytes` of an array lie, from element `from` of a piece on.
StatePlace place_of(const Layout& layout, const std::vector<std::size_t>& first_parameter,
                    const StatePiece& piece, std::int64_t from, std::size_t bytes,
                    std::size_t element_size) {
  const auto after =
      std::upper_bound(first_parameter.begin(), first_parameter.end(), piece.parameter);
  const auto unit = static_cast<std::size_t>(after - first_parameter.begin()) - 1;
  const Slot& slot = layout.unit(unit).slots[piece.parameter - first_parameter[unit]];
  const std::int64_t begin = slot.offset + piece.begin + from;
  const auto count = static_cast<std::int64_t>(bytes / element_size);
  ensure(from >= 0 && from + count <= piece.count && bytes % element_size == 0,
         "whole elements of a piece are moved");
  return {unit, {begin, begin + count}};
}

}  // namespace

void Engine::read_state(const StatePiece& piece, int array, std::int64_t from,
                        std::span<std::byte> out) {
  const std::size_t size = array == 0 ? sizeof(float) : c10::elementSize(moments());
  const auto [unit, range] =
      place_of(impl_->layout, impl_->first_parameter, piece, from, out.size(), size);
  impl_->state->read(unit, range, array, out);
}

void Engine::write_state(const StatePiece& piece, int array, std::int64_t from,
                         std::span<const std::byte> in) {
  const std::size_t size = array == 0 ? sizeof(float) : c10::elementSize(moments());
  const auto [unit, range] =
      place_of(impl_->layout, impl_->first_parameter, piece, from, in.size(), size);
  impl_->state->write(unit, range, array, in);
}

MemoryUse Engine::memory() const {
  const Impl& engine = *impl_;
  MemoryUse use;
  use.work = engine.weights->held_bytes();
  use.master = engine.state->master_bytes();
  use.moments = engine.state->moment_bytes();
  use.grad = engine.gradients->accumulator_bytes();
  use.transient =
      Bytes(engine.gradients->transient_bytes().value + engine.weights->transient_bytes().value +
            engine.state->transient_bytes().value);
  use.disk = Bytes(engine.gradients->disk_bytes().value + engine.weights->disk_bytes().value +
                   engine.state->disk_bytes().value);
  return use;
}

Engine::CommSeconds Engine::take_comm_seconds() {
  const Weights::Times times = impl_->weights->take_times();
  return {std::exchange(impl_->comm_seconds, 0.0) + times.waited,
          times.under_way + impl_->gradients->take_exchange_seconds()};
}

memory::TierStats Engine::take_tier_stats() {
  memory::TierStats total = impl_->weights->take_tier_stats();
  add(total, impl_->gradients->take_tier_stats());
  add(total, impl_->state->take_stats());
  return total;
}

std::string Engine::take_note() { return impl_->weights->take_note(); }

}  // namespace trireme::parallel
