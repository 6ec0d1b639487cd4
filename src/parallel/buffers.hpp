// Buffers that forward changes (running means of a batch norm), the same for any number of ranks:
// every micro-batch of a step starts from the values that the step began with, and the step moves
// them by the mean of the micro-batches' changes; whole numbers (counters) by their sum. Private to
// the room.
#pragma once

#include "trireme/comm/communicator.hpp"
#include "trireme/parallel/module_tree.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::parallel {

class Buffers {
 public:
  explicit Buffers(const ModuleTree& tree);

  void begin_step();
  // Around a micro-batch of this rank; `counts`: its changes are part of the step.
  void begin_micro_batch();
  void end_micro_batch(std::int64_t index, bool counts);

  // Whether a micro-batch of this rank changed any.
  bool changed() const { return !changes_.empty(); }
  // @collective. Moves the buffers by the changes of all ranks. Throws Config for a buffer that is
  // neither a float nor a whole number.
  void apply(comm::Communicator& world);

 private:
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    at::Tensor base;            // as the step began
    std::int64_t version = -1;  // of `tensor` when it was equal to base

    bool has_changed() const;
  };
  struct Change {
    std::int64_t micro_batch;
    std::int64_t buffer;
    std::vector<double> by;
  };
  static void set(Buffer& buffer, const at::Tensor& values);

  std::vector<Buffer> buffers_;
  std::vector<Change> changes_;
};

}  // namespace trireme::parallel
