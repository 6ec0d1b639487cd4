#include "run_in_context.hpp"

#include "report_error.hpp"

namespace trireme::app {

int run_in_context(int& argc, char**& argv, const std::function<int(Context&)>& action) {
  Context context(argc, argv);
  try {
    return action(context);
  } catch (const std::exception& exception) {
    Error error = as_error(exception);
    if (error.rank < 0 && !error.everywhere)
      error.rank = static_cast<long>(context.world().rank().value);
    if (!error.everywhere || context.world().is_root()) print_error(error);
    context.log().record(obs::Level::kError, error.report());
    context.log().flush();
    if (!error.everywhere) context.session().abort(exit_code(error.kind));
    return exit_code(error.kind);
  }
}

}  // namespace trireme::app
