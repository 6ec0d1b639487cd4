// Where a loop's numbers go: root's files, or what a user brings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

using LogValues = std::map<std::string, double>;

// Only rank 0 has trackers; what it throws ends the run on all ranks.
class Tracker {
 public:
  virtual ~Tracker() = default;
  virtual std::string name() const = 0;
  // The settings of the run, once, before anything is logged.
  virtual void store_init_configuration(const std::map<std::string, std::string>& /*config*/) {}
  virtual void log(const LogValues& values, std::int64_t step) = 0;
  virtual void finish() {}
};

// "jsonl": <folder>/log.jsonl, one object a line; "tensorboard": event files in <folder>. Throws
// Config for another name, with the nearest, and Io.
std::unique_ptr<Tracker> make_tracker(const std::string& name, const std::filesystem::path& folder);

}  // namespace trireme
