// A world of one rank, for tests that do not use MPI.
#include "support/world.hpp"

namespace trireme::testing {
namespace {

class Alone final : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int agree(int exit_code) override { return exit_code; }
};

}  // namespace

std::unique_ptr<World> make_world(int*, char***) { return std::make_unique<Alone>(); }

}  // namespace trireme::testing
