#include "trireme/train/context.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/memory/process.hpp"

#include <charconv>

namespace trireme {

namespace {

// Tests only: makes this many ranks of one machine a node of their own (comm::SessionOptions).
constexpr std::string_view kRanksPerNode = "TRIREME_TEST_RANKS_PER_NODE";

comm::SessionOptions session_options(const Environment& environment) {
  comm::SessionOptions options;
  if (const auto text = lookup(environment, kRanksPerNode)) {
    std::from_chars(text->data(), text->data() + text->size(), options.ranks_per_node);
  }
  return options;
}

}  // namespace

struct Context::Impl {
  Environment environment;
  cluster::Identity identity;
  comm::Session session;
  kernels::Runtime kernels;
  obs::Log log;

  Impl(int& argc, char**& argv)
      : environment(current_environment()),
        identity(cluster::identify(environment)),
        session(&argc, &argv, session_options(environment)),
        log(static_cast<int>(session.world().rank().value), session.world().is_root()) {
    cluster::check_against_mpi(identity, static_cast<int>(session.world().rank().value),
                               session.world().size());
  }
};

Context::Context(int& argc, char**& argv) {
  memory::keep_freed_memory();
  impl_ = std::make_unique<Impl>(argc, argv);
}
Context::~Context() = default;

comm::Session& Context::session() { return impl_->session; }
comm::Communicator& Context::world() { return impl_->session.world(); }
obs::Log& Context::log() { return impl_->log; }
const cluster::Identity& Context::identity() const { return impl_->identity; }
const Environment& Context::environment() const { return impl_->environment; }

}  // namespace trireme
