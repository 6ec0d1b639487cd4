#include "trireme/parallel/dispatch.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace trireme::parallel {

namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// The dispatcher calls a plain function, so who listens must be found from the thread. Set only by
// ObserveOperators.
thread_local OperatorObserver* current_observer = nullptr;

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  if (current_observer != nullptr && current_observer->on_operator(op, *stack)) return;
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

ObserveOperators::ObserveOperators(OperatorObserver& observer)
    : previous_(current_observer), include_(kKey) {
  current_observer = &observer;
}

ObserveOperators::~ObserveOperators() { current_observer = previous_; }

}  // namespace trireme::parallel
