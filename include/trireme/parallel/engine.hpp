// The sharding engine: one state model for every strategy (DESIGN section 2). It owns the four
// arrays of each unit (work, grad, master, moments) and takes a module through a step without the
// module knowing:
//
//   accumulate()       forward and backward of this rank's micro-batches, gradients summed
//   sums()             one small message: losses, token counts, the squared norm
//   for_each_update()  the optimizer's fused pass over what this rank holds, writing new weights
//   publish()          all ranks see them
//
// For a loop that is not the engine's, accumulate() exists in pieces (EngineOptions::dealt).
#pragma once

#include "trireme/base/units.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/memory/tier_file.hpp"
#include "trireme/parallel/compute_on.hpp"
#include "trireme/parallel/deferred.hpp"
#include "trireme/parallel/disk.hpp"
#include "trireme/parallel/dispatch.hpp"
#include "trireme/parallel/layout.hpp"
#include "trireme/parallel/micro_batches.hpp"
#include "trireme/parallel/norms.hpp"
#include "trireme/parallel/units.hpp"

#include <torch/nn/module.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::parallel {

// The most moments that an optimizer keeps for each element.
inline constexpr int kMaxMoments = 3;

struct EngineOptions {
  std::string strategy = "zero3";
  UnitOptions units;
  at::ScalarType compute = at::kBFloat16;  // kBFloat16, kHalf or kFloat
  std::int64_t num_micro_batches = 1;      // per step, over all ranks
  // Micro-batches are dealt to ranks in turn: for begin_step() instead of accumulate().
  bool dealt = false;
  int num_moments = 2;                  // what the optimizer keeps; at most kMaxMoments
  at::ScalarType moments = at::kFloat;  // their type: kFloat or kBFloat16
  int num_norm_groups = 1;              // groups of parameters whose norms are told apart
  NormGroupOf norm_group_of = {};       // needed for more than one
  // How sums of gradients travel between nodes: kFloat, or kBFloat16, where each node's partial sum
  // is rounded once. Added is in fp32.
  at::ScalarType reduce = at::kFloat;
  int shard_size = 0;  // hsdp: ranks that hold the model together; 0: those of a node
  // Whether gathered weights make room again as soon as others need it. Otherwise they stay until
  // the next update: one gather a step, and a whole copy of the weights on every node.
  bool reshard_after_forward = true;
  // What lives in files of each rank in the folder `disk` instead of memory: the shard of weights
  // (zero3, hsdp), the sums of gradients (zero2, zero3, hsdp), master weights and moments.
  bool work_on_disk = false;
  bool grad_on_disk = false;
  bool state_on_disk = false;
  DiskOptions disk = {};
  ComputeOn compute_on = ComputeOn::kHost;
};

// What a micro-batch gives: the value to differentiate, and over how many targets its loss was
// summed.
struct MicroBatchLoss {
  at::Tensor loss;
  std::int64_t num_targets = 0;
};

// What a rank tells the others beside its sums.
struct RankNote {
  bool stop = false;  // it was asked to stop
  Bytes peak_resident;
};

// Sums over the whole step, equal on every rank and, where Assignment::inexact is empty, for every
// number of ranks.
struct StepSums {
  double loss = 0;  // of the values returned by micro-batches, added by micro-batch index
  std::int64_t num_targets = 0;
  double square_norm = 0;            // of the summed gradient
  std::vector<double> square_norms;  // by norm group; square_norm is their sum
  std::string
      non_finite;  // the first parameter whose gradient holds Inf or NaN; empty when all are finite
  std::vector<std::string> unused;  // parameters that train and had no gradient in this step
  bool stop = false;                // any rank was asked to stop
  Bytes peak_resident;              // the highest of all ranks
};

// Where one part's moments begin, of EngineOptions::moments each; null beyond num_moments.
using Moments = std::array<std::byte*, kMaxMoments>;

// A contiguous part of one parameter that this rank updates.
struct UpdatePiece {
  const Slot* slot = nullptr;
  std::size_t parameter = 0;  // index into Engine::parameters()
  std::int64_t begin = 0;     // first element of the logical tensor
  // Index of the first element in the logical order of all parameters, the same for every sharding.
  std::uint64_t element = 0;
  std::span<const float> grad;
  std::span<float> master;
  Moments moments{};
  // Where to write the new weights, or null when another rank of the node writes them, and the type
  // to write.
  std::byte* work = nullptr;
  at::ScalarType work_type = at::kFloat;
};

// A contiguous part of one parameter's state that this rank holds, for checkpoints.
struct StatePiece {
  std::size_t parameter = 0;  // index into Engine::parameters()
  std::int64_t begin = 0;     // element of the logical tensor
  std::int64_t count = 0;
  // Null where state is on disk: then Engine::read_state and write_state move it.
  float* master = nullptr;
  Moments moments{};
};

// Whether a pass over state changes it.
enum class Access { kRead, kWrite };

struct MemoryUse {
  Bytes work;  // this rank's share of the weights
  Bytes grad;
  Bytes master;
  Bytes moments;
  Bytes transient;  // buffers for the units in use
  Bytes disk;       // files; not part of the total

  Bytes total() const {
    return Bytes(work.value + grad.value + master.value + moments.value + transient.value);
  }
};

class Engine {
 public:
  // @collective. Takes over the module's parameters: their values become those of `initial`, their
  // storage and type the engine's. The module must outlive the engine. Throws Config for a strategy,
  // units or a mesh that do not fit the model and the ranks.
  Engine(comm::Session& session, torch::nn::Module& module, InitialValues& initial,
         const EngineOptions& options);
  // The same for any tree of modules, such as one that TorchScript runs.
  Engine(comm::Session& session, const ModuleTree& tree, InitialValues& initial,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // @collective. Runs forward and backward of this rank's micro-batches; `loss_of` gets the
  // micro-batch index in the step. `num_micro_batches`: of this step, where it has fewer than usual;
  // 0: as usual. Throws Config naming a parameter that user code changed, moved or added since the
  // engine took over the module.
  void accumulate(Step step, const std::function<MicroBatchLoss(std::int64_t)>& loss_of,
                  std::int64_t num_micro_batches = 0);
  // accumulate() in pieces, for loops that come to their micro-batches as they go. Every rank calls
  // them equally often; turn t of rank r is micro-batch t * ranks + r of the step. Between begin and
  // end of a micro-batch lie its forward and its backward. A micro-batch that does not count
  // contributes nothing. The step may end before it had as many turns as it could.
  void begin_step(Step step);  // at most num_micro_batches / ranks turns
  void begin_micro_batch(bool counts = true);
  // Whether a gradient has reached the micro-batch at hand.
  bool has_gradients() const;
  void end_micro_batch(const MicroBatchLoss& result);
  void end_step();  // @collective
  // @collective. In place of sums(): forgets the gradients of a step that has ended.
  void discard();
  // Before a forward without gradients, outside evaluate().
  void begin_evaluation();
  // Whom to show the operators of forward and backward (ObserveOperators) outside accumulate() and
  // evaluate(); null where weights stay in memory.
  OperatorObserver* observer();

  // @collective.
  StepSums sums(const RankNote& note = {});
  // Calls `update` for every part that this rank holds state for and that trains. With kRead,
  // `update` only looks.
  void for_each_update(const std::function<void(const UpdatePiece&)>& update,
                       Access access = Access::kWrite);
  // @collective. Ends an update.
  void publish();

  // @collective on strategies that gather: every rank calls it equally often. Runs `forward`
  // without gradients.
  void evaluate(const std::function<void()>& forward);

  const Layout& layout() const;
  const Assignment& assignment() const;
  at::ScalarType compute() const;
  int num_moments() const;
  at::ScalarType moments() const;
  // All parameters in unit order, each once.
  std::vector<const Slot*> parameters() const;
  MemoryUse memory() const;

  // `owned`: only the parts whose owner this rank is, so that over all ranks they tile each
  // parameter once (saving). Otherwise all that this rank holds (loading).
  std::vector<StatePiece> state(bool owned);
  // Copies elements of one array of a piece from its element `from` on: array 0 is master, 1 + m
  // moment m, in their types.
  void read_state(const StatePiece& piece, int array, std::int64_t from, std::span<std::byte> out);
  void write_state(const StatePiece& piece, int array, std::int64_t from,
                   std::span<const std::byte> in);
  // @collective. Derives the weights from master, after state was written from outside.
  void refresh_work();

  // Since the last call. `exposed`: what accumulate() and publish() spent in reductions and waiting
  // for others. `under_way`: how long transfers between nodes were under way, most of it behind
  // computation if all is well.
  struct CommSeconds {
    double exposed = 0;
    double under_way = 0;
  };
  CommSeconds take_comm_seconds();
  // Transfers to and from disk since the last call.
  memory::TierStats take_tier_stats();
  // What a user should be told, once: empty, or why something runs slower than it could.
  std::string take_note();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::parallel
