// From files and flags to a checked Config, with the source of every value.
#pragma once

#include "trireme/config/config.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::config {

// Where a value came from: "default", "demo.yaml:12", "--set optimizer.lr".
using Sources = std::map<std::string, std::string>;

struct Loaded {
  Config config;
  Sources sources;  // by dotted path, every field present; also data.train.0.path and so on
};

// Reads the files in order, then the `--set` assignments ("a.b=value", "data.train.0.path=x");
// later wins, lists are replaced whole. Unknown and duplicate keys, wrong types, values out of
// range and the findings of check() are collected; throws one Config error whose message lists them
// all, each as "file:line: path: problem". Refused for safety: anchors and aliases, tags, nesting
// deeper than any setting needs, files above 1 MiB or that are not text. An empty file changes
// nothing.
Loaded load(const std::vector<std::filesystem::path>& files,
            const std::vector<std::string>& assignments = {});

// The same from a text, for tests and stored configurations.
Loaded load_text(std::string_view yaml, std::string_view name,
                 const std::vector<std::string>& assignments = {});

// Returns the model of a configuration that is stored with its weights. The other sections are of
// the run that it was written for, perhaps by another version, and are passed over.
Model load_model(std::string_view yaml, std::string_view name);
// The same of what it was trained on.
Data load_data(std::string_view yaml, std::string_view name);

// Returns what is wrong with a Config however it was made, each as "place: path: problem" (empty =
// fine): values out of range, combinations that cannot work, and values of the design that this
// version does not have, each with what to set instead. `sources` may be empty.
std::vector<std::string> check(const Config& config, const Sources& sources = {});

// Throws one Config error that lists the findings of check(), if there are any.
void require_valid(const Config& config, const Sources& sources = {});

// Returns the resolved configuration as YAML, each line with the source of its value as a comment;
// load_text reads it back to the same Config.
std::string to_yaml(const Config& config, const Sources& sources = {});

// The same of the settings alone that something else than a default gave.
std::string given_yaml(const Config& config, const Sources& sources);

// Returns path and "value (source)" of every setting that differs from its default, in table order,
// for banners.
std::vector<std::pair<std::string, std::string>> changed_settings(const Config& config,
                                                                  const Sources& sources = {});

// Returns every dotted path, in table order.
std::vector<std::string> field_paths();

// Returns an aligned text of the settings whose path starts with `prefix` (all by default), with
// type, default, allowed values and help, as the command line prints it.
std::string help_text(std::string_view prefix = {});

// Returns the reference page of every field (Markdown), and the JSON Schema (2020-12).
std::string reference_page();
std::string json_schema();

}  // namespace trireme::config
