// What a process needs before anything else, made once by main and passed down: MPI, kernels, the
// log, who it is.
#pragma once

#include "trireme/base/environment.hpp"
#include "trireme/cluster/identity.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/obs/log.hpp"

#include <memory>

namespace trireme {

class Context {
 public:
  // @collective. Throws Environment when what the launcher says and MPI contradict each other.
  Context(int& argc, char**& argv);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  comm::Session& session();
  comm::Communicator& world();
  obs::Log& log();
  const cluster::Identity& identity() const;
  const Environment& environment() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
