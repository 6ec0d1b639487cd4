#include "trireme/parallel/recompute.hpp"

#include "trireme/base/error.hpp"
#include "trireme/parallel/dispatch.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include <mutex>
#include <unordered_set>

namespace trireme {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Notes the parameters that operators read, and hands every operator on to whoever watched before.
class WatchLeaves : public parallel::OperatorObserver {
 public:
  explicit WatchLeaves(parallel::OperatorObserver* before) : before_(before) {}

  bool on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    for (const auto& argument : torch::jit::last(stack, op.schema().arguments().size())) {
      if (argument.isTensor()) {
        note(argument.toTensor());
      } else if (argument.isTensorList()) {
        for (const at::Tensor& tensor : argument.toTensorVector()) note(tensor);
      }
    }
    return before_ != nullptr && before_->on_operator(op, stack);
  }

  void leave_out(const at::Tensor& tensor) {
    if (tensor.defined()) seen_.insert(tensor.unsafeGetTensorImpl());
  }
  variable_list take() { return std::move(leaves_); }

 private:
  void note(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf()) return;
    if (seen_.insert(tensor.unsafeGetTensorImpl()).second) leaves_.push_back(tensor);
  }

  parallel::OperatorObserver* before_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  variable_list leaves_;
};

// Runs the part again, with gradients this time, and lets them through.
class Rerun : public torch::autograd::Node {
 public:
  std::function<TensorList(const TensorList&)> function;
  std::vector<SavedVariable> inputs;
  std::vector<bool> wanted;  // inputs that require a gradient
  variable_list leaves;
  at::Tensor generator;

  std::string name() const override { return "trireme::checkpoint"; }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!inputs.empty() || !leaves.empty(),
                "backward runs a second time through trireme::checkpoint");
    TensorList arguments;
    variable_list sources;  // what gradients are taken of, in the order of this node's edges
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      at::Tensor argument = inputs[i].unpack();
      if (argument.defined()) argument = argument.detach().requires_grad_(wanted[i]);
      if (wanted[i]) sources.push_back(argument);
      arguments.push_back(std::move(argument));
    }
    sources.insert(sources.end(), leaves.begin(), leaves.end());

    const at::Tensor now = generator_state();
    set_generator_state(generator);
    TensorList outputs;
    {
      const at::AutoGradMode with_gradients(true);
      outputs = function(arguments);
    }
    set_generator_state(now);

    variable_list roots;
    variable_list seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      seeds.push_back(gradients[i]);
    }
    variable_list result(inputs.size() + leaves.size());
    if (roots.empty()) return result;
    variable_list found = torch::autograd::grad(roots, sources, seeds, /*retain_graph=*/false,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    auto next = found.begin();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (wanted[i]) result[i] = std::move(*next++);
    }
    std::move(next, found.end(), result.begin() + static_cast<std::ptrdiff_t>(inputs.size()));
    return result;
  }

  void release_variables() override {
    for (SavedVariable& input : inputs) input.reset_data();
    leaves.clear();
    inputs.clear();
    function = nullptr;
  }
};

}  // namespace

TensorList checkpoint(std::function<TensorList(const TensorList&)> function, TensorList inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const at::Tensor generator = generator_state();
  WatchLeaves watch(parallel::current_observer());
  for (const at::Tensor& input : inputs) watch.leave_out(input);
  TensorList outputs;
  {
    const at::NoGradGuard no_gradients;
    const parallel::ObserveOperators observe(watch);
    outputs = function(inputs);
  }
  auto node = c10::make_intrusive<Rerun>();
  node->leaves = watch.take();
  bool any = !node->leaves.empty();
  for (const at::Tensor& input : inputs) {
    node->wanted.push_back(input.defined() && input.requires_grad());
    any = any || node->wanted.back();
    node->inputs.emplace_back(input, /*is_output=*/false);
  }
  if (!any) return outputs;
  for (const at::Tensor& input : inputs)
    node->add_next_edge(input.defined() ? torch::autograd::impl::gradient_edge(input)
                                        : torch::autograd::Edge());
  for (const at::Tensor& leaf : node->leaves)
    node->add_next_edge(torch::autograd::impl::gradient_edge(leaf));
  node->function = std::move(function);
  node->generator = generator;
  for (at::Tensor& output : outputs) {
    // An output that is an input must not lose the history that it has.
    for (const at::Tensor& input : inputs) {
      if (input.defined() && output.is_same(input)) output = output.detach();
    }
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace trireme
