// The one place that sees operators: a boxed fallback on an otherwise unused dispatch key hands
// every operator and its arguments to an observer, in forward and in backward, for any module
// (DESIGN section 3). About 1 us an operator, and nothing at all while no observer is set.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace c10 {
class OperatorHandle;
}

namespace trireme::parallel {

class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  // Called before the operator runs, with its arguments on top of the stack. Returns true when it
  // has done the operator's work itself: arguments popped, results pushed.
  virtual bool on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
};

// Who sees the operators of this thread at present; null when nobody does.
OperatorObserver* current_observer();

// While it lives, operators of this thread are seen by `observer`; operators that an operator calls
// are not.
class ObserveOperators {
 public:
  explicit ObserveOperators(OperatorObserver& observer);
  ~ObserveOperators();
  ObserveOperators(const ObserveOperators&) = delete;
  ObserveOperators& operator=(const ObserveOperators&) = delete;

 private:
  OperatorObserver* previous_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace trireme::parallel
