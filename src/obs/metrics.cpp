#include "trireme/obs/metrics.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/units.hpp"
#include "trireme/obs/tensorboard.hpp"

#include "append.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string_view>
#include <vector>

namespace trireme::obs {

namespace {

// Every measured value: its name in metrics.jsonl, its tag in TensorBoard, and where it is kept.
struct Column {
  std::string_view name;
  std::string_view tag;
  std::optional<double> StepMetrics::*number = nullptr;
  std::optional<std::int64_t> StepMetrics::*count = nullptr;
};

constexpr std::array kColumns{
    Column{"loss", "train/loss", &StepMetrics::loss},
    Column{"lr", "train/lr", &StepMetrics::lr},
    Column{"grad_norm", "train/grad_norm", &StepMetrics::grad_norm},
    Column{"tokens", "progress/tokens", nullptr, &StepMetrics::tokens},
    Column{"samples", "progress/samples", nullptr, &StepMetrics::samples},
    Column{"tokens_per_s", "speed/tokens_per_s", &StepMetrics::tokens_per_s},
    Column{"mfu", "speed/mfu", &StepMetrics::mfu},
    Column{"step_s", "time/step_s", &StepMetrics::step_s},
    Column{"data_s", "time/data_s", &StepMetrics::data_s},
    Column{"compute_s", "time/compute_s", &StepMetrics::compute_s},
    Column{"comm_s", "time/comm_s", &StepMetrics::comm_s},
    Column{"exchange_s", "time/exchange_s", &StepMetrics::exchange_s},
    Column{"offload_stall_s", "time/offload_stall_s", &StepMetrics::offload_stall_s},
    Column{"offload_io_s", "time/offload_io_s", &StepMetrics::offload_io_s},
    Column{"optim_s", "time/optim_s", &StepMetrics::optim_s},
    Column{"ckpt_s", "time/ckpt_s", &StepMetrics::ckpt_s},
    Column{"skipped", "train/skipped", nullptr, &StepMetrics::skipped},
    Column{"loss_scale", "train/loss_scale", &StepMetrics::loss_scale},
    Column{"rss_mib_max", "memory/rss_mib_max", &StepMetrics::rss_mib_max},
    Column{"eval_loss", "eval/loss", &StepMetrics::eval_loss},
};

std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  if (value == 0 && std::signbit(value)) return "-0.0";  // "-0" would be read as the integer 0
  return fmt::format("{}", value);
}

std::vector<Scalar> scalars_of(const StepMetrics& metrics) {
  std::vector<Scalar> scalars;
  for (const Column& column : kColumns) {
    if (column.number != nullptr && (metrics.*column.number)) {
      scalars.push_back({column.tag, static_cast<float>(*(metrics.*column.number))});
    }
    if (column.count != nullptr && (metrics.*column.count)) {
      scalars.push_back({column.tag, static_cast<float>(*(metrics.*column.count))});
    }
  }
  return scalars;
}

// Whether a line of an earlier run stays: a whole JSON object of a step up to `last_step`. Whole
// lines without a step are somebody's notes and stay.
bool keeps(std::string_view line, std::int64_t last_step) {
  if (!line.starts_with('{') || !line.ends_with('}')) return false;
  constexpr std::string_view kStart = "{\"step\":";
  if (!line.starts_with(kStart)) return true;
  std::int64_t step = 0;
  const auto digits = line.substr(kStart.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return error == std::errc{} && step <= last_step;
}

// Calls use(line, keep, ended) for every line; `ended`: it has its newline.
template <class Use>
void for_each_line(const std::filesystem::path& path, std::int64_t last_step, Use use) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw_errno("opening", path.native());
  for (std::string line; std::getline(stream, line);)
    use(line, keeps(line, last_step), !stream.eof());
  if (stream.bad()) throw_errno("reading", path.native());
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor opened(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened) ::fsync(opened.get());  // some file systems refuse; the rename is done in any case
}

// Rewrites the file without the lines that the resumed run repeats. The old file stays complete
// until the rename, so a crash here loses nothing.
void drop_repeated_lines(const std::filesystem::path& path, std::int64_t last_step) {
  if (!std::filesystem::is_regular_file(path)) return;
  bool clean = true;
  for_each_line(path, last_step,
                [&](const std::string&, bool keep, bool ended) { clean = clean && keep && ended; });
  if (clean) return;
  const std::filesystem::path fresh = path.native() + ".new";
  const FileDescriptor file = detail::open_to_append(fresh, O_CREAT | O_TRUNC);
  constexpr std::size_t kBuffer = 1 << 20;
  std::string buffer;
  for_each_line(path, last_step, [&](const std::string& line, bool keep, bool) {
    if (keep) buffer += line + "\n";
    if (buffer.size() < kBuffer) return;
    detail::append_whole(file.get(), buffer, fresh);
    buffer.clear();
  });
  if (!buffer.empty()) detail::append_whole(file.get(), buffer, fresh);
  if (::fsync(file.get()) != 0) throw_errno("syncing", fresh.native());
  if (::rename(fresh.c_str(), path.c_str()) != 0) throw_errno("renaming", fresh.native());
  sync_folder(path.parent_path());
}

// "6.1K", "830".
std::string compact(double value) {
  constexpr std::array<const char*, 5> kSuffixes{"", "K", "M", "G", "T"};
  std::size_t suffix = 0;
  while (value >= 999.5 && suffix + 1 < kSuffixes.size()) {
    value /= 1000;
    ++suffix;
  }
  const bool fraction = value < 9.95 || suffix > 0;
  return fmt::format("{:.{}f}{}", value, fraction ? 1 : 0, kSuffixes[suffix]);
}

// "2h05m", "1m20s", "45s": whole seconds, since it is an estimate.
std::string left_text(double seconds) {
  return seconds < 60 ? fmt::format("{:.0f}s", std::floor(seconds)) : human_seconds(seconds);
}

}  // namespace

std::string to_json(const StepMetrics& metrics) {
  std::string out = fmt::format("{{\"step\":{}", metrics.step);
  for (const Column& column : kColumns) {
    if (column.number != nullptr && (metrics.*column.number)) {
      out += fmt::format(",\"{}\":{}", column.name, json_number(*(metrics.*column.number)));
    }
    if (column.count != nullptr && (metrics.*column.count)) {
      out += fmt::format(",\"{}\":{}", column.name, *(metrics.*column.count));
    }
  }
  return out + "}";
}

struct MetricsWriter::Impl {
  std::filesystem::path path;
  FileDescriptor file;
  std::optional<EventFile> events;
};

MetricsWriter::MetricsWriter(const std::filesystem::path& folder, std::int64_t last_step,
                             bool tensorboard)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = folder / "metrics.jsonl";
  drop_repeated_lines(impl_->path, last_step);
  impl_->file = detail::open_to_append(impl_->path, O_CREAT);
  if (tensorboard) impl_->events.emplace(folder, last_step + 1);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write(const StepMetrics& metrics) {
  detail::append_whole(impl_->file.get(), to_json(metrics) + "\n", impl_->path);
  if (!impl_->events) return;
  const std::vector<Scalar> scalars = scalars_of(metrics);
  impl_->events->write(metrics.step, scalars);
}

std::string progress_line(const StepMetrics& metrics, std::int64_t max_steps, double seconds_left) {
  const std::string total = fmt::format("{}", max_steps);
  std::string out = max_steps > 0 ? fmt::format("step {:>{}}/{}", metrics.step, total.size(), total)
                                  : fmt::format("step {}", metrics.step);
  if (metrics.loss) out += fmt::format("  loss {:.4f}", *metrics.loss);
  if (metrics.eval_loss) out += fmt::format("  eval {:.4f}", *metrics.eval_loss);
  if (metrics.lr) out += fmt::format("  lr {:.1e}", *metrics.lr);
  if (metrics.grad_norm) out += fmt::format("  norm {:.2f}", *metrics.grad_norm);
  if (metrics.tokens_per_s) out += fmt::format("  {} tok/s", compact(*metrics.tokens_per_s));
  if (metrics.mfu) out += fmt::format("  mfu {:.0f}%", 100 * *metrics.mfu);
  if (metrics.skipped.value_or(0) > 0) out += fmt::format("  skipped {}", *metrics.skipped);
  if (seconds_left >= 0 && std::isfinite(seconds_left))
    out += fmt::format("  left {}", left_text(seconds_left));
  return out;
}

}  // namespace trireme::obs
