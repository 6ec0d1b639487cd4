// The field table: one record per setting, with its dotted path, unit, range, choices and help, and
// where it lives in a Config. Whatever reads, writes, checks or describes settings is a loop over
// this table, so a new setting is one record.
#pragma once

#include "trireme/config/config.hpp"

#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::config {

// Bounds of a number, or of each number of a list.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is not allowed
  bool below_max = false;  // max itself is not allowed
};

// A permitted word. With `instead`, the word belongs to the design but not to this version: it is
// refused and `instead` says what to set.
struct Choice {
  std::string_view value;
  std::string_view instead = {};
};

// Where a value lives; the alternative is the type of the setting.
using Slot =
    std::variant<std::string*, std::int64_t*, std::uint64_t*, double*, std::optional<double>*,
                 bool*, std::vector<double>*, std::vector<std::string>*, std::vector<DataSource>*,
                 std::vector<ParameterGroup>*, std::map<std::string, std::string>*>;

enum class Form {
  kPlain,
  kSeconds,   // 90, 120s, 10min, 2h
  kUnset,     // null, 0 or an empty text mean "not set", which is the default
  kFileName,  // a text that is one plain folder name
  kPath,      // a text that is not empty
};

struct FieldInfo {
  std::string_view path;  // "optimizer.lr"; of a source's field only its key, "path"
  std::string_view unit;  // what a number counts; for a text, what it names
  std::string_view help;
  Form form = Form::kPlain;
  Range range = {};
  std::vector<Choice> choices = {};
};

struct Field : FieldInfo {
  Slot (*slot)(Config&) = nullptr;
};

// A field of one entry of a list.
template <class Entry>
struct EntryField : FieldInfo {
  Slot (*slot)(Entry&) = nullptr;
};
using SourceField = EntryField<DataSource>;
using GroupField = EntryField<ParameterGroup>;

// A key of the design that this version does not have, and what to set instead.
struct LaterKey {
  std::string_view path;
  std::string_view instead;
};

struct Section {
  std::string_view name;
  std::string_view help;
};

// Every setting, in the order of Config.
std::span<const Field> fields();
// Of an entry of data.train and data.eval, and of optimizer.groups; the first is its key.
std::span<const SourceField> source_fields();
std::span<const GroupField> group_fields();
std::span<const LaterKey> later_keys();
std::span<const Section> sections();

// Returns the record of a dotted path, or nullptr.
const Field* find_field(std::string_view path);

// Returns every dotted path, in table order.
std::vector<std::string> field_paths();

// Returns a field's value as it is written in YAML: "0.0003", "120s", "[0.9, 0.95]", "null".
std::string value_text(const FieldInfo& field, const Slot& slot);
std::string value_text(const Field& field, const Config& config);

// Returns e.g. "integer", "number", "seconds", "list of numbers".
std::string type_text(const FieldInfo& field, const Slot& slot);

// Returns e.g. "1 to 4096", "above 0", "gpt2 | llama"; empty when anything goes.
std::string allowed_text(const FieldInfo& field);

}  // namespace trireme::config
