#include "trireme/train/trackers.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/obs/tensorboard.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <optional>

namespace trireme {

namespace {

nlohmann::json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

class JsonLines : public Tracker {
 public:
  explicit JsonLines(const std::filesystem::path& folder) : path_(folder / "log.jsonl") {
    std::filesystem::create_directories(folder);
    file_.open(path_, std::ios::app);
    if (!file_) throw_errno("open", path_.string());
  }
  std::string name() const override { return "jsonl"; }
  void store_init_configuration(const std::map<std::string, std::string>& config) override {
    if (!config.empty()) write({{"config", config}});
  }
  void log(const LogValues& values, std::int64_t step) override {
    nlohmann::json line{{"step", step}};
    for (const auto& [key, value] : values) line[key] = number(value);
    write(line);
  }

 private:
  void write(const nlohmann::json& line) {
    file_ << line.dump() + "\n" << std::flush;
    if (!file_) throw_errno("write", path_.string());
  }

  std::filesystem::path path_;
  std::ofstream file_;
};

class TensorBoard : public Tracker {
 public:
  explicit TensorBoard(const std::filesystem::path& folder) {
    std::filesystem::create_directories(folder);
    file_.emplace(folder);
  }
  std::string name() const override { return "tensorboard"; }
  void log(const LogValues& values, std::int64_t step) override {
    std::vector<obs::Scalar> scalars;
    for (const auto& [key, value] : values) scalars.push_back({key, static_cast<float>(value)});
    file_->write(step, scalars);
  }

 private:
  std::optional<obs::EventFile> file_;
};

}  // namespace

std::unique_ptr<Tracker> make_tracker(const std::string& name,
                                      const std::filesystem::path& folder) {
  if (name == "jsonl") return std::make_unique<JsonLines>(folder);
  if (name == "tensorboard") return std::make_unique<TensorBoard>(folder);
  const std::vector<std::string> names{"jsonl", "tensorboard"};
  const auto near = nearest(name, names);
  throw Error(ErrorKind::kConfig, fmt::format("log_with: no tracker '{}'", name),
              near ? fmt::format("did you mean '{}'?", *near)
                   : fmt::format("there are {}; others are a class derived from Tracker "
                                 "(Accelerator::add_tracker)",
                                 fmt::join(names, ", ")));
}

}  // namespace trireme
