// All ranks of MPI_COMM_WORLD, for tests that trireme_test registers with RANKS.
#include "support/world.hpp"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace trireme::testing {
namespace {

class Everyone final : public World {
 public:
  Everyone(int* argc, char*** argv) {
    int provided = 0;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  // A test that closes MPI itself (a Context does) leaves nothing to do here.
  ~Everyone() override {
    if (open()) MPI_Finalize();
  }
  Everyone(const Everyone&) = delete;
  Everyone& operator=(const Everyone&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  int agree(int exit_code) override {
    if (!open()) return exit_code;
    std::vector<int> codes(static_cast<std::size_t>(size_));
    MPI_Allgather(&exit_code, 1, MPI_INT, codes.data(), 1, MPI_INT, MPI_COMM_WORLD);
    const int skipped = 77;
    if (std::ranges::all_of(codes, [](int code) { return code == skipped; })) return skipped;
    int worst = 0;
    for (int r = 0; r < size_; ++r) {
      const int code = codes[static_cast<std::size_t>(r)];
      // A skip on some ranks only is no skip of the test.
      if (code == 0 || code == skipped) continue;
      worst = std::max(worst, code);
      if (rank_ == 0) std::fprintf(stderr, "failed on rank %d of %d\n", r, size_);
    }
    return worst;
  }

 private:
  static bool open() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    return finalized == 0;
  }

  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

std::unique_ptr<World> make_world(int* argc, char*** argv) {
  return std::make_unique<Everyone>(argc, argv);
}

}  // namespace trireme::testing
