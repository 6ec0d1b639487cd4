#include "trireme/parallel/dispatch.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace trireme::parallel {

namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// The dispatcher calls a plain function, so who listens must be found from the thread. Set only by
// ObserveOperators.
thread_local OperatorObserver* watching = nullptr;

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  if (watching != nullptr && watching->on_operator(op, *stack)) return;
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

OperatorObserver* current_observer() { return watching; }

ObserveOperators::ObserveOperators(OperatorObserver& observer)
    : previous_(watching), include_(kKey) {
  watching = &observer;
}

ObserveOperators::~ObserveOperators() { watching = previous_; }

}  // namespace trireme::parallel
