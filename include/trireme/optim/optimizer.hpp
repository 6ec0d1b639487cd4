// The optimizer over the engine's shards: clip, update and the new weights in one pass over memory,
// the same bits for every strategy and number of ranks. One class for all types; what differs is a
// rule of the kernels room.
//
//   Optimizer optimizer(options);                 everything refused that can be
//   optimizer.configure(engine_options);          moments to keep, norms to tell apart
//   optimizer.attach(engine, world);              groups, initial state
//   optimizer.update(engine, engine.sums(), {...});   after each accumulate()
#pragma once

#include "trireme/comm/communicator.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/parallel/engine.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::optim {

// transformers' Adafactor beside rate, weight decay and momentum.
struct AdafactorOptions {
  double square_eps = 1e-30;  // added to squared gradients
  double scale_eps = 1e-3;    // least root mean square of a weight that the rate is scaled with
  double clip_threshold = 1;  // largest root mean square of an update
  double decay_rate = -0.8;
  bool scale_parameter = true;  // rate relative to the root mean square of the weight
  bool relative_step = true;    // rate from the update's number; lr and schedule are not used
  bool warmup_init = false;
};

struct OptimizerOptions {
  std::string type = "adamw";  // adamw | adam | sgd | adagrad | lion | adafactor
  double lr = 3e-4;
  std::array<double, 2> betas{0.9, 0.95};  // adamw, adam, lion
  double eps = 1e-8;                       // adamw, adam, adagrad
  double weight_decay = 0.1;  // decoupled; added to the gradient by adam, sgd and adagrad
  bool decay_all = false;     // false: parameters with fewer than two dimensions do not decay
  bool amsgrad = false;       // adamw, adam
  bool maximize = false;
  double momentum = 0;   // sgd; adafactor's beta1
  double dampening = 0;  // sgd
  bool nesterov = false;
  double lr_decay = 0;             // adagrad
  double initial_accumulator = 0;  // adagrad
  AdafactorOptions adafactor = {};
  double clip_norm = 0;   // of all parameters outside groups with a bound of their own; 0: none
  double clip_value = 0;  // of each element, after clipping by norm; 0: none
  std::vector<GroupRule> groups = {};
  at::ScalarType moments = at::kFloat;  // or kBFloat16, rounded stochastically
  std::uint64_t seed = 0;               // of that
};

// State beside the engine's moments: small, fp32, the same on every rank after each update.
struct ExtraTensor {
  std::string slot;           // "exp_avg_sq_row": stored as /optimizer/<slot>/<parameter>
  std::size_t parameter = 0;  // index into Engine::parameters()
  std::vector<std::int64_t> shape;
  std::span<float> values;
  bool owned = false;  // this rank answers for it: one rank of all does
};

// One update.
struct UpdateStep {
  std::int64_t number = 1;  // counts updates from 1; a skipped step is none
  double grad_scale = 1;    // what gradients are multiplied with before they are clipped
  std::function<double(double)> rate = {};  // from a group's base rate to the one of this update
  // Rates of the groups, in the order of Groups, in place of `rate`; empty: not used.
  std::vector<double> rates = {};
  std::optional<double> clip_value = {};  // in place of OptimizerOptions::clip_value
  std::optional<double> momentum = {};  // instead of beta1 or momentum, where a schedule cycles it
  std::optional<double> beta2 = {};
};

// Returns what to multiply gradients with so that their norm is at most `max_norm` (0: no bound):
// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
double clip_coefficient(double norm, double max_norm);

class Optimizer {
 public:
  // Throws Config, with all problems.
  explicit Optimizer(OptimizerOptions options);
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // Names of the moments, in the engine's order: torch's names of the same state.
  std::vector<std::string> moment_names() const;

  // The rates that groups start from.
  std::vector<double> base_rates() const;
  // Whether there is a momentum that a schedule could move.
  bool has_momentum() const;

  // Says to the engine what this optimizer needs of it.
  void configure(parallel::EngineOptions& options) const;

  // Finds each parameter's group and fills the initial state. Throws Config for a rule without
  // effect. `world` must outlive this; it is used by Adafactor only.
  void attach(parallel::Engine& engine, comm::Communicator& world);

  // @collective for Adafactor. Updates every part that this rank holds; `sums` is Engine::sums() of
  // these gradients. The weights become visible with Engine::publish().
  void update(parallel::Engine& engine, const parallel::StepSums& sums, const UpdateStep& step);

  // Returns the rate that the group without rule has in this update.
  double rate(const UpdateStep& step) const;

  std::vector<ExtraTensor> extra_state();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::optim
