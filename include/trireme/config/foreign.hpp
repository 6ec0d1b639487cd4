// Configuration files of Accelerate (YAML or JSON), DeepSpeed (JSON) and transformers'
// TrainingArguments (JSON or YAML): what each one means, as the program that it was written for
// would take it, with the place of every value. Every key is part of the meaning, or named as
// without effect here, or refused with its place and the nearest right one; none passes silently.
// Safe on hostile files: bounded size, depth and aliases. Does not turn them into a Config.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::config {

enum class ForeignKind { kAccelerate, kDeepSpeed, kTrainingArguments };

// Returns "accelerate", "deepspeed", "training arguments".
std::string_view name_of(ForeignKind kind);

// Plain data; a map keeps its order.
struct Value {
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Map> data;

  Value() = default;
  Value(bool value) : data(value) {}
  Value(std::int64_t value) : data(value) {}
  Value(int value) : data(std::int64_t{value}) {}
  Value(double value) : data(value) {}
  Value(const char* value) : data(std::string(value)) {}
  Value(std::string value) : data(std::move(value)) {}
  Value(List value) : data(std::move(value)) {}
  Value(Map value) : data(std::move(value)) {}

  bool null() const { return std::holds_alternative<std::monostate>(data); }
  // Returns the entry of a map; null when there is none or this is no map.
  const Value& at(std::string_view key) const;
  // Sets an entry; a null becomes a map.
  void set(std::string_view key, Value value);
  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;  // integers too
  std::optional<std::string> text() const;
  bool is(std::string_view text) const;

  // Returns JSON on one line.
  std::string json() const;
};

enum class Severity {
  kError,          // the file is refused
  kWarning,        // taken, but perhaps not as meant
  kDeprecated,     // an old name, taken as `suggest` or dropped
  kNotApplicable,  // without effect here; `why` says why
};

struct ForeignFinding {
  Severity severity = Severity::kError;
  std::string path;  // dotted; empty for the file as a whole
  std::string file;
  int line = 0;  // from 1; 0 when the key is absent
  int column = 0;
  std::string why;
  std::string suggest;  // empty when there is nothing better to write
  Value value;          // of what has no effect, as the file writes it

  // Returns "file:line:column: path: why; suggestion".
  std::string report() const;
};

// Where a part of the meaning comes from: a key, or a default of the program that the file is for.
struct Origin {
  std::string file;
  std::string key;
  int line = 0;
  std::string standard;               // whose default, or "computed"; then there is no key
  std::optional<std::string> filled;  // the key says "auto": what filled it, empty = nothing
};

// What else is known; it fills "auto" and the batch arithmetic.
struct ForeignContext {
  std::optional<std::int64_t> world_size;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> total_steps;
  Value training_args;  // a map by the names of TrainingArguments
};

struct Foreign {
  ForeignKind kind = ForeignKind::kAccelerate;
  std::string file;
  // strategy, mesh, num_processes, num_machines, batch, mixed_precision, loss_scale, grad_accum,
  // grad_clip, offload, nvme_path, activation_checkpointing, units, zero, optimizer, scheduler,
  // run, ...; null where the file does not say.
  Value meaning;
  std::map<std::string, Origin> origins;  // by the meaning's dotted names
  std::vector<ForeignFinding> findings;

  bool accepted() const;
  // Returns findings, meaning and origins as one JSON object.
  std::string json() const;
};

// Reads a file; what it names (a DeepSpeed file) is looked up beside it, then in the working
// folder. Throws Io when the file cannot be read; everything in it is a finding.
Foreign read_foreign(ForeignKind kind, const std::filesystem::path& file,
                     const ForeignContext& context = {});

// The same from a text; JSON when its first character is '{' or '/', YAML otherwise.
Foreign read_foreign_text(ForeignKind kind, std::string_view text,
                          const std::filesystem::path& name, const ForeignContext& context = {});

// Returns what kind of file a text most likely is, by its keys; nothing for a native or unknown
// one.
std::optional<ForeignKind> guess_foreign(std::string_view text);

// One key that the adapters know, for lists and completion.
struct ForeignKey {
  std::string path;
  std::string use;   // "honoured", "no effect", "dropped", "renamed"
  std::string note;  // why, or the new name
};
std::vector<ForeignKey> foreign_keys(ForeignKind kind);

}  // namespace trireme::config
