// The communicator of all ranks of a test that trireme_test registers with RANKS. The test's main
// has started MPI already, so it is put together from the room's parts instead of by a Session.
#pragma once

#include "trireme/comm/communicator.hpp"

#include "comm/communicator_impl.hpp"
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace trireme::testing {

class CommWorld final : public ::testing::Environment {
 public:
  static comm::Communicator& get() { return *instance()->world_; }
  static CommWorld* instance() {
    static CommWorld* const registered =
        static_cast<CommWorld*>(::testing::AddGlobalTestEnvironment(new CommWorld));
    return registered;
  }

  void SetUp() override {
    constexpr std::chrono::seconds kTimeout(30);
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    auto node_impl = comm::make_node_group(duplicate(), std::move(ranks), kTimeout);
    auto* node = node_impl.get();
    node_ = std::make_unique<comm::NodeGroup>(std::move(node_impl));
    world_ = std::make_unique<comm::Communicator>(
        comm::make_communicator(duplicate(), node_.get(), node, kTimeout));
  }
  void TearDown() override {
    world_.reset();
    node_.reset();
  }

 private:
  static int size() {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
  }
  static comm::CommHandle duplicate() {
    comm::CommHandle comm;
    MPI_Comm_dup(MPI_COMM_WORLD, comm.address());
    return comm;
  }

  std::unique_ptr<comm::NodeGroup> node_;
  std::unique_ptr<comm::Communicator> world_;
};

inline const auto* const kCommWorldIsRegistered = CommWorld::instance();

}  // namespace trireme::testing
