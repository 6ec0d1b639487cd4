// One record per step: metrics.jsonl (INTERFACE names), TensorBoard event file, and the progress
// line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace trireme::obs {

// Absent = not measured; absent values are not written.
struct StepMetrics {
  std::int64_t step = 0;
  std::optional<double> loss, lr, grad_norm;
  std::optional<std::int64_t> tokens, samples;  // consumed so far, over all ranks
  std::optional<double> tokens_per_s,
      mfu;  // of this step; mfu as a fraction of the measured GEMM peak
  std::optional<double> step_s, data_s, compute_s, comm_s, optim_s, ckpt_s;
  // Of transfers between nodes: how long they were under way. Of transfers to and from disk: how
  // long the step waited for them, and how long the disk was at work, which bounds the wait.
  std::optional<double> exchange_s, offload_stall_s, offload_io_s;
  std::optional<std::int64_t> skipped;
  std::optional<double> loss_scale, rss_mib_max, eval_loss;
};

// Returns one JSON object without newline; numbers are written so that reading them back gives the
// same double (shortest round trip); NaN and infinities as strings.
std::string to_json(const StepMetrics& metrics);

// Root's writer. Lines reach the file at once, whole, so that a killed run leaves no torn line.
class MetricsWriter {
 public:
  // Appends to `folder`/metrics.jsonl, after dropping lines of steps beyond `last_step` (a resumed
  // run repeats them) and a torn last line. With `tensorboard` also a new events.out.tfevents file.
  MetricsWriter(const std::filesystem::path& folder, std::int64_t last_step, bool tensorboard);
  ~MetricsWriter();
  void write(const StepMetrics& metrics);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns "step 120/200  loss 2.3142  lr 2.9e-04  norm 0.83  6.1K tok/s  mfu 41%  left 1m20s".
std::string progress_line(const StepMetrics& metrics, std::int64_t max_steps, double seconds_left);

}  // namespace trireme::obs
