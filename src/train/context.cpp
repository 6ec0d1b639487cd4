#include "trireme/train/context.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/version.hpp"
#include "trireme/cluster/job.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/memory/process.hpp"

#include <charconv>
#include <chrono>
#include <cstring>

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

// What the environment says of this process, or what is wrong with it. A rank that throws before
// MPI_Init would leave the others waiting in theirs.
struct Told {
  cluster::Identity identity;
  std::optional<Error> wrong;
};

Told read_identity(const Environment& environment) {
  try {
    return {cluster::identify(environment), std::nullopt};
  } catch (const Error& error) {
    return {{}, error};
  }
}

// @collective. Throws on every rank what the first one with a fault found.
void require_sound(const Told& told, comm::Communicator& world) {
  world.agree("compare what launchers say", [&told] {
    if (told.wrong) throw *told.wrong;
  });
}

// For starting MPI, unless it is known that it cannot work.
comm::SessionOptions checked_options(const Told& told, const Environment& environment) {
  if (!told.wrong) cluster::check_before_mpi(told.identity, environment, build::kMpi);
  return session_options(environment);
}

// @collective. Every rank says who its launcher made it.
void check_claims(const cluster::Identity& identity, comm::Communicator& world) {
  const cluster::Claim mine{identity.rank.value_or(-1)};
  cluster::check_claims(identity, comm::all_gather_values(world, mine, "ranks of the launcher"));
}

// @collective. Where the environment does not tell the job's end, rank 0 asks the scheduler, once.
std::optional<double> job_end(const Environment& environment, comm::Communicator& world) {
  constexpr std::chrono::seconds kPatience{5};
  double end = 0;
  if (world.is_root()) {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto found = cluster::job_end(environment, cluster::ask_within(kPatience), now);
    if (found) end = found->unix_time;
  }
  comm::ByteVector bytes(sizeof(end));
  std::memcpy(bytes.data(), &end, sizeof(end));
  bytes = world.broadcast(std::move(bytes), "the job's end");
  std::memcpy(&end, bytes.data(), sizeof(end));
  return end > 0 ? std::optional(end) : std::nullopt;
}

}  // namespace

struct Context::Impl {
  Environment environment;
  Told told;
  comm::Session session;
  kernels::Runtime kernels;
  obs::Log log;

  Impl(int& argc, char**& argv)
      : environment(current_environment()),
        told(read_identity(environment)),
        session(&argc, &argv, checked_options(told, environment)),
        log(static_cast<int>(session.world().rank().value), session.world().is_root()) {
    require_sound(told, session.world());
    cluster::Identity& identity = told.identity;
    cluster::check_against_mpi(identity, static_cast<int>(session.world().rank().value),
                               session.world().size());
    check_claims(identity, session.world());
    identity.deadline_unix = job_end(environment, session.world());
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
const cluster::Identity& Context::identity() const { return impl_->told.identity; }
const Environment& Context::environment() const { return impl_->environment; }

}  // namespace trireme
