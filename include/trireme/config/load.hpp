// From files and flags to a checked Config, with the source of every value.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/config/config.hpp"

namespace trireme::config {

// Where a value came from: "default", "demo.yaml:12", "--set optimizer.lr".
using Sources = std::map<std::string, std::string>;

struct Loaded {
  Config config;
  Sources sources;  // by dotted path, every field present
};

// Reads the files in order, then the `--set a.b=value` assignments; later wins. Unknown and duplicate keys, wrong types,
// values out of range, and (with check()) combinations that cannot work are collected; throws one Config error whose
// message lists them all, each as "file:line: path: problem (did you mean 'x'?)".
Loaded load(const std::vector<std::filesystem::path>& files, const std::vector<std::string>& assignments);

// The same from a text, for tests and stored configurations.
Loaded load_text(std::string_view yaml, std::string_view name, const std::vector<std::string>& assignments = {});

// Returns the combinations that cannot work, as texts (empty = fine): heads that do not divide hidden, a global batch
// that the micro-batch does not divide, sequence_length above context, a strategy, precision, offload, driver or
// optimizer that this version does not have (each says what to set instead) ...
std::vector<std::string> check(const Config& config, const Sources& sources);

// Returns the resolved configuration as YAML, each line with the source of its value as a comment; load_text reads it
// back to the same Config.
std::string to_yaml(const Config& config, const Sources& sources);

// Returns the reference page of every field (Markdown), and the JSON Schema.
std::string reference_page();
std::string json_schema();

}  // namespace trireme::config
