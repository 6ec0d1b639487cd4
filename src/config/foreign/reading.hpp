// A foreign document held against its table of keys: typed values with their places, and a finding
// for everything else. What the keys mean together is the business of the three interpreters.
#pragma once

#include "trireme/config/foreign.hpp"

#include "document.hpp"
#include "keys.hpp"

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::config::foreign {

struct Hit {
  Value value;
  std::string path;  // as the file writes it
  int line = 0;
  int column = 0;
};

// How the keys of a section may be written.
struct Prefix {
  std::string_view section;
  std::string_view prefix;
  bool in_table = true;  // the table has it, a file may leave it out; false: the other way round
};

class Reading {
 public:
  // Walks the whole document. `out` takes the findings.
  Reading(const Document& document, std::span<const Key> keys, std::span<const Prefix> prefixes,
          Foreign& out);

  bool unreadable() const { return unreadable_; }

  // By the table's path; nullptr when absent, null or refused.
  const Hit* hit(std::string_view path) const;
  // The first of several names that is there.
  const Hit* hit(std::initializer_list<std::string_view> paths) const;
  // Says of every key that should be part of the meaning and that nobody asked for.
  void finish();
  // Whether the file has the key, whatever it says; 0 when not, otherwise its line.
  int line(std::string_view path) const;
  // Those below a group, each then counted as asked for.
  std::vector<std::pair<std::string, const Hit*>> below(std::string_view group) const;
  const std::map<std::string, Hit, std::less<>>& hits() const { return hits_; }

  void error(const Hit& hit, std::string why, std::string suggest);
  void error(std::string path, int line, std::string why, std::string suggest);
  void warn(std::string path, int line, std::string why, std::string suggest = {});
  void deprecate(const Hit& hit, std::string why, std::string suggest);
  void idle(const Hit& hit, std::string why);

  // Sets a part of the meaning ("offload.params") and where it came from.
  void mean(std::string_view name, Value value, const Hit& origin);
  void mean(std::string_view name, Value value, std::string_view standard);
  void mean(std::string_view name, Value value, Origin origin);
  Origin origin_of(const Hit& hit) const;

 private:
  void walk_group(const Node& group, const std::string& written, const std::string& path);
  void walk_entry(const Node::Entry& entry, const std::string& written, const std::string& path);
  std::string canonical(const std::string& section, const std::string& key,
                        const std::string& written, const Node::Entry& entry);
  void unknown(const Node::Entry& entry, const std::string& written, const std::string& section);
  void take(const Key& key, const Node::Entry& entry, const std::string& written);
  std::optional<Value> typed(const Key& key, const Node::Entry& entry, const std::string& written);
  std::optional<Value> boolean(const Key& key, const Node& node, const Hit& place);
  std::optional<Value> number(const Key& key, const Node& node, const Hit& place);
  std::optional<Value> word(const Key& key, const Node& node, const Hit& place);
  std::optional<Value> texts(const Node& node, const Hit& place);
  // With `report`, keys given twice are errors.
  Value as_it_stands(const Node& node, const Hit& place, bool report);
  bool in_range(const Key& key, double value, const Hit& place);
  void add(Severity severity, const Hit& hit, std::string why, std::string suggest);

  const Document& document_;
  std::span<const Key> keys_;
  std::span<const Prefix> prefixes_;
  Foreign& out_;
  bool unreadable_ = false;
  std::map<std::string, Hit, std::less<>> hits_;
  std::map<std::string, int, std::less<>> lines_;
  mutable std::set<std::string, std::less<>> asked_;  // filled by looking, which changes nothing
};

// "a, b" as a list, trimmed.
Value::List split_words(std::string_view text, std::string_view separators = ",");
// The choice that `word` names, whatever its case; empty when none.
std::string choice_of(std::string_view choices, std::string_view word);
// The nearest of "a|b|c".
std::string nearest_choice(std::string_view choices, std::string_view word);

void interpret_accelerate(const Document& document, const std::filesystem::path& file,
                          Foreign& out);
void interpret_deepspeed(const Document& document, const ForeignContext& context, Foreign& out);
void interpret_training(const Document& document, const std::filesystem::path& file,
                        const ForeignContext& context, Foreign& out);
// Reads a DeepSpeed file that `file` names; a finding of `key` when there is none.
std::optional<Foreign> read_named(const Hit& key, const std::filesystem::path& file,
                                  const ForeignContext& context, Reading& reading);

}  // namespace trireme::config::foreign
