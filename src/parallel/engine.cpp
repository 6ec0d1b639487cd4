#include "trireme/parallel/engine.hpp"

#include "trireme/base/deadline.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/convert.hpp"
#include "trireme/parallel/gradients.hpp"
#include "trireme/parallel/units.hpp"
#include "trireme/parallel/weights.hpp"

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

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

// The message of Engine::sums: a head, the losses of the rank's micro-batches, the square sums
// of its blocks.
struct Head {
  std::int64_t num_losses;
  std::int64_t stop;
  std::int64_t peak_resident;
};
struct LossEntry {
  std::int64_t micro_batch;
  std::int64_t num_targets;
  double loss;
};

// Sums are taken over the ranks of a node first: a subtree only when every node holds the same power
// of two.
std::string why_nodes_are_inexact(const comm::Topology& topology) {
  if (topology.num_nodes == 1) return {};
  const int ranks = topology.ranks_on(0);
  for (int node = 0; node < topology.num_nodes; ++node) {
    if (topology.ranks_on(node) != ranks) return "nodes have different numbers of ranks";
  }
  if (!std::has_single_bit(static_cast<unsigned>(ranks)))
    return fmt::format("{} ranks on a node is not a power of two", ranks);
  return {};
}

std::int64_t bytes_of_elements(std::int64_t elements, std::int64_t size) { return elements * size; }

}  // namespace

struct Engine::Impl {
  comm::Session& session;
  torch::nn::Module& module;
  EngineOptions options;
  const Strategy& row;
  std::vector<UnitParameters> units;
  Layout layout;
  Norms norms;
  Assignment assignment;
  Weights weights;
  Gradients gradients;

  memory::HostBuffer master;
  std::vector<memory::HostBuffer> moments;   // one a moment
  std::vector<std::int64_t> state_offset;    // by unit, in elements
  std::vector<std::size_t> first_parameter;  // by unit
  std::vector<LossEntry> losses;
  double comm_seconds = 0;

  Impl(comm::Session& session, torch::nn::Module& module, const EngineOptions& options)
      : session(session),
        module(module),
        options(options),
        row(strategy(options.strategy)),
        units(find_units(module, options.units)),
        layout(describe(units), session.world().size()),
        norms(layout, options.num_norm_groups, options.norm_group_of),
        assignment(assign_micro_batches(row.reduce_at, options.num_micro_batches,
                                        session.world().size(), session.world().rank())),
        weights(session, layout, row, options.compute),
        gradients(session, layout, row, assignment) {
    if (assignment.inexact.empty()) assignment.inexact = why_nodes_are_inexact(session.topology());
    weights.set_idle([this] { gradients.progress(); });
    std::int64_t elements = 0;
    std::size_t parameters = 0;
    for (std::size_t u = 0; u < units.size(); ++u) {
      state_offset.push_back(elements);
      first_parameter.push_back(parameters);
      elements += held(u).size();
      parameters += units[u].parameters.size();
    }
    const Bytes size(bytes_of_elements(elements, sizeof(float)));
    master = memory::HostBuffer(size, "master weights");
    ensure(options.num_moments >= 0 && options.num_moments <= kMaxMoments,
           "an optimizer keeps at most three moments");
    for (int m = 0; m < options.num_moments; ++m) {
      moments.emplace_back(Bytes(bytes_of_elements(elements, moment_size())), "optimizer moments");
    }
  }

  Rank me() const { return session.world().rank(); }

  // The part of a unit whose master and moments this rank holds.
  Range held(std::size_t unit) const {
    if (row.state == Placement::kReplicated) return {0, layout.unit(unit).size};
    return layout.shard(unit, me());
  }

  std::int64_t moment_size() const {
    return static_cast<std::int64_t>(c10::elementSize(options.moments));
  }

  // Where an element of a unit's held part lies in the arrays of state.
  std::int64_t state_index(std::size_t unit, std::int64_t offset) const {
    return state_offset[unit] + offset - held(unit).begin;
  }

  std::span<float> master_span(std::size_t unit, const Piece& piece) const {
    const std::int64_t at = state_index(unit, piece.offset);
    return master.as<float>(static_cast<std::size_t>(at) * sizeof(float),
                            static_cast<std::size_t>(piece.count));
  }

  Moments moments_at(std::size_t unit, const Piece& piece) const {
    Moments at{};
    const std::int64_t offset = state_index(unit, piece.offset) * moment_size();
    for (std::size_t m = 0; m < moments.size(); ++m) at[m] = moments[m].bytes().data() + offset;
    return at;
  }

  // The held part of a unit, cut where shards end: inside one part, gradients are contiguous and
  // one rank writes the weights.
  std::vector<Range> held_by_owner(std::size_t unit) const {
    if (row.state == Placement::kFlatShard) return {held(unit)};
    std::vector<Range> ranges;
    for (int owner = 0; owner < layout.num_ranks(); ++owner)
      ranges.push_back(layout.shard(unit, Rank(owner)));
    return ranges;
  }

  void initialise(InitialValues& initial) {
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (const Piece& piece : layout.pieces(u, held(u))) {
        initial.fill(units[u].parameters[piece.slot], units[u].names[piece.slot], piece.begin,
                     master_span(u, piece));
      }
    }
  }

  void attach() {
    for (std::size_t u = 0; u < units.size(); ++u) {
      weights.attach(u, units[u].parameters);
      for (std::size_t s = 0; s < units[u].parameters.size(); ++s) {
        at::Tensor& parameter = units[u].parameters[s];
        parameter.mutable_grad().reset();
        torch::autograd::impl::set_post_acc_grad_hooks(
            parameter, std::make_unique<TakeGradient>([this, u, s](const at::Tensor& gradient) {
              const auto start = Clock::now();
              gradients.take(u, s, gradient);
              comm_seconds += seconds_since(start);
            }));
      }
    }
  }

  // Observes operators only where weights come and go.
  template <class Action>
  void with_weights(const Action& action) {
    std::optional<ObserveOperators> observe;
    if (!weights.resident()) observe.emplace(weights);
    action();
  }

  void run_micro_batch(std::int64_t index, bool discard,
                       const std::function<MicroBatchLoss(std::int64_t)>& loss_of) {
    gradients.begin_micro_batch(discard);
    with_weights([&] {
      const MicroBatchLoss result = loss_of(index);
      if (result.loss.numel() != 1) {
        throw Error(ErrorKind::kConfig, "the loss of a micro-batch is not a single number",
                    "sum it");
      }
      session.node().set_place("backward", current_step);
      result.loss.backward();
      if (!discard) {
        losses.push_back({index, result.num_targets, result.loss.item<double>()});
      }
    });
    const auto start = Clock::now();
    gradients.end_micro_batch();
    comm_seconds += seconds_since(start);
  }

  std::int64_t current_step = 0;

  std::vector<double> square_sums() {
    std::vector<double> sums;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const Range mine = layout.shard(u, me());
      norms.append(u, mine, gradients.sum(u, mine), sums);
    }
    return sums;
  }

  // Returns the index of the first parameter of this rank's shards with a gradient that is not
  // finite, or the number of all.
  std::size_t first_non_finite() const {
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (const Piece& piece : layout.pieces(u, layout.shard(u, me()))) {
        for (const float g : gradients.sum(u, {piece.offset, piece.offset + piece.count})) {
          if (!std::isfinite(g)) return first_parameter[u] + piece.slot;
        }
      }
    }
    return first_parameter.back() + units.back().parameters.size();
  }
};

Engine::Engine(comm::Session& session, torch::nn::Module& module, InitialValues& initial,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(session, module, options)) {
  impl_->initialise(initial);
  impl_->attach();
  refresh_work();
}

Engine::~Engine() {
  if (impl_ == nullptr) return;
  // The module may outlive the engine: its parameters must not call into it.
  for (UnitParameters& unit : impl_->units) {
    for (at::Tensor& parameter : unit.parameters) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    }
  }
}

void Engine::accumulate(Step step, const std::function<MicroBatchLoss(std::int64_t)>& loss_of) {
  Impl& engine = *impl_;
  engine.current_step = step.value;
  engine.losses.clear();
  engine.gradients.begin_step();
  for (const std::vector<std::int64_t>& round : engine.assignment.rounds) {
    for (const std::int64_t micro_batch : round) {
      engine.session.node().set_place("forward", step.value);
      engine.run_micro_batch(micro_batch, /*discard=*/false, loss_of);
    }
    // A rank without work in the last round keeps step with the others, who gather and reduce unit
    // by unit.
    const bool idle = round.empty() && engine.row.reduce_at == ReduceAt::kUnit;
    if (idle) engine.run_micro_batch(0, /*discard=*/true, loss_of);
    const auto start = Clock::now();
    engine.session.node().set_place("reduce", step.value);
    engine.gradients.end_round();
    engine.comm_seconds += seconds_since(start);
  }
  engine.gradients.finish();
}

StepSums Engine::sums(const RankNote& note) {
  Impl& engine = *impl_;
  comm::Communicator& world = engine.session.world();
  const std::vector<double> squares = engine.square_sums();
  const auto start = Clock::now();
  const Head head{static_cast<std::int64_t>(engine.losses.size()), note.stop ? 1 : 0,
                  note.peak_resident.value};
  comm::ByteVector message;
  const auto append = [&](std::span<const std::byte> bytes) {
    message.insert(message.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(&head, 1)));
  append(std::as_bytes(std::span(engine.losses)));
  append(std::as_bytes(std::span(squares)));

  StepSums result;
  std::vector<LossEntry> losses;
  std::vector<std::vector<double>> by_rank;
  for (const comm::ByteVector& bytes : world.all_gather(message, "losses and norm")) {
    Head theirs{};
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    result.stop = result.stop || theirs.stop != 0;
    result.peak_resident = std::max(result.peak_resident, Bytes(theirs.peak_resident));
    const std::size_t old = losses.size();
    losses.resize(old + static_cast<std::size_t>(theirs.num_losses));
    const std::size_t losses_size = static_cast<std::size_t>(theirs.num_losses) * sizeof(LossEntry);
    std::memcpy(losses.data() + old, bytes.data() + sizeof theirs, losses_size);
    const std::size_t rest = bytes.size() - sizeof theirs - losses_size;
    std::memcpy(by_rank.emplace_back(rest / sizeof(double)).data(),
                bytes.data() + sizeof theirs + losses_size, rest);
  }
  std::sort(losses.begin(), losses.end(),
            [](const LossEntry& a, const LossEntry& b) { return a.micro_batch < b.micro_batch; });
  for (const LossEntry& entry : losses) {
    result.loss += entry.loss;
    result.num_targets += entry.num_targets;
  }
  result.square_norms = engine.norms.total(by_rank);
  for (const double part : result.square_norms) result.square_norm += part;
  engine.comm_seconds += seconds_since(start);
  if (!std::isfinite(result.square_norm)) {
    std::size_t first = engine.first_non_finite();
    for (const std::size_t theirs : comm::all_gather_values(world, first, "non-finite gradients")) {
      first = std::min(first, theirs);
    }
    const auto all = parameters();
    result.non_finite = first < all.size() ? all[first]->name : "(the norm overflows)";
  }
  return result;
}

void Engine::for_each_update(const std::function<void(const UpdatePiece&)>& update) {
  Impl& engine = *impl_;
  for (std::size_t u = 0; u < engine.units.size(); ++u) {
    for (const Range& range : engine.held_by_owner(u)) {
      for (const Piece& piece : engine.layout.pieces(u, range)) {
        if (!engine.layout.unit(u).slots[piece.slot].trains) continue;
        UpdatePiece part;
        part.slot = &engine.layout.unit(u).slots[piece.slot];
        part.parameter = engine.first_parameter[u] + piece.slot;
        part.begin = piece.begin;
        part.element =
            static_cast<std::uint64_t>(engine.layout.unit(u).first_block * kBlock + piece.offset);
        part.grad = engine.gradients.sum(u, {piece.offset, piece.offset + piece.count});
        part.master = engine.master_span(u, piece);
        part.moments = engine.moments_at(u, piece);
        part.work = engine.weights.target(u, piece.offset);
        part.work_type = engine.options.compute;
        update(part);
      }
    }
  }
}

void Engine::publish() {
  const auto start = Clock::now();
  impl_->weights.publish();
  impl_->comm_seconds += seconds_since(start);
}

void Engine::evaluate(const std::function<void()>& forward) {
  const at::NoGradGuard no_grad;
  impl_->session.node().set_place("evaluate", impl_->current_step);
  impl_->with_weights(forward);
}

void Engine::refresh_work() {
  Impl& engine = *impl_;
  // Nobody may be reading the old weights.
  engine.session.world().barrier("refresh weights");
  for (std::size_t u = 0; u < engine.units.size(); ++u) {
    for (const Range& range : engine.held_by_owner(u)) {
      for (const Piece& piece : engine.layout.pieces(u, range)) {
        std::byte* const work = engine.weights.target(u, piece.offset);
        if (work == nullptr) continue;
        const auto from = engine.master_span(u, piece);
        if (engine.options.compute == at::kBFloat16) {
          kernels::narrow_bf16(from, {reinterpret_cast<kernels::Half*>(work), from.size()});
        } else {
          std::memcpy(work, from.data(), from.size_bytes());
        }
      }
    }
  }
  engine.weights.publish();
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
    const Range range = owned ? engine.layout.shard(u, engine.me()) : engine.held(u);
    for (const Piece& piece : engine.layout.pieces(u, range)) {
      StatePiece& out = pieces.emplace_back();
      out.parameter = engine.first_parameter[u] + piece.slot;
      out.begin = piece.begin;
      out.count = piece.count;
      out.master = engine.master_span(u, piece).data();
      out.moments = engine.moments_at(u, piece);
    }
  }
  return pieces;
}

MemoryUse Engine::memory() const {
  const Impl& engine = *impl_;
  const auto size = [](const memory::HostBuffer& buffer) {
    return static_cast<std::int64_t>(buffer.bytes().size());
  };
  MemoryUse use;
  const bool gathers = !engine.weights.resident();
  use.work = gathers ? engine.weights.shard() : engine.weights.share_of_window();
  use.master = Bytes(size(engine.master));
  for (const memory::HostBuffer& moment : engine.moments) use.moments.value += size(moment);
  use.grad = engine.gradients.accumulator_bytes();
  use.transient = Bytes(engine.gradients.transient_bytes().value +
                        (gathers ? engine.weights.share_of_window().value : 0));
  return use;
}

double Engine::take_comm_seconds() { return std::exchange(impl_->comm_seconds, 0.0); }

}  // namespace trireme::parallel
