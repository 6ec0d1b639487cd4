// Adafactor over shards: second moments of matrices as sums over rows and columns, small enough to
// be held by every rank. The ranks agree on them in three steps, each a message to the owner of a
// parameter's statistics (its index modulo the ranks) and one back to all:
//   largest entries of rows and columns, and the norm of the weights;
//   sums of squares, from which the owner makes the new moments;
//   the norm of the update, by which it is bounded;
// and then the update itself. No sum depends on who held what (kernels/adafactor.hpp).
#pragma once

#include "trireme/kernels/adafactor.hpp"
#include "trireme/optim/optimizer.hpp"

#include <span>
#include <vector>

namespace trireme::optim {

// What differs between parameters in an update.
struct AdafactorStep {
  double rate = 0;
  double weight_decay = 0;
  kernels::GradientTreatment treatment;
};

class Adafactor {
 public:
  Adafactor(const AdafactorOptions& options, double beta1, parallel::Engine& engine,
            comm::Communicator& world);

  // @collective. `steps` by parameter; `number` counts updates from 1.
  void update(parallel::Engine& engine, std::span<const AdafactorStep> steps, std::int64_t number,
              std::uint64_t rounding);

  std::vector<ExtraTensor> extra_state();

 private:
  // A parameter as a batch of matrices; one with fewer than two dimensions is a single row without
  // row statistics.
  struct Tensor {
    const parallel::Slot* slot = nullptr;
    std::int64_t matrices = 1;
    std::int64_t rows = 1;
    std::int64_t cols = 1;
    bool factored = false;
    std::vector<float> row;  // moments: means of squares over rows
    std::vector<float> col;  // and over columns; of a single row, its squares themselves
    std::vector<float> row_largest, col_largest;
    std::vector<double> row_sums, col_sums;
    std::vector<float> row_factors, col_factors;
    double root_mean_square = 0;  // of the weights
    double divisor = 1;           // of the update

    // What this rank answers for: elements, and the rows and columns that they lie in.
    std::vector<parallel::Range> owned;
    parallel::Range owned_rows;
    parallel::Range owned_cols;

    kernels::MatrixPart part(std::span<const float> grad, std::int64_t begin) const {
      return {grad, begin, rows, cols};
    }
  };

  static Tensor describe(const parallel::Slot& slot);
  int owner(std::size_t parameter) const {
    return static_cast<int>(parameter % static_cast<std::size_t>(world_.size()));
  }
  bool mine(std::size_t parameter) const {
    return owner(parameter) == static_cast<int>(world_.rank().value);
  }
  // Calls use(tensor, piece) for the parts that this rank answers for.
  template <class Use>
  void for_owned(parallel::Engine& engine, const Use& use);

  struct Record;
  std::vector<Record> to_owners(std::vector<Record> records);
  std::vector<Record> to_all(const std::vector<Record>& records);

  void agree_on_largest(parallel::Engine& engine);
  void agree_on_moments(parallel::Engine& engine, std::span<const AdafactorStep> steps,
                        std::int64_t number);
  void move_moments(Tensor& tensor, std::int64_t number) const;
  static void make_factors(Tensor& tensor);
  void agree_on_divisors(parallel::Engine& engine, std::span<const AdafactorStep> steps);
  void apply(parallel::Engine& engine, std::span<const AdafactorStep> steps,
             std::uint64_t rounding);

  AdafactorOptions options_;
  double beta1_;
  comm::Communicator& world_;
  std::vector<Tensor> tensors_;  // by parameter
};

}  // namespace trireme::optim
