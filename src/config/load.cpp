#include "trireme/config/load.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/adapt.hpp"
#include "trireme/config/fields.hpp"

#include "check.hpp"
#include "tree.hpp"
#include "values.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

namespace trireme::config {

namespace {

using detail::Node;

// More files than this in one run are a mistake, and every rank would open them all.
constexpr std::size_t kMaxEntries = 10000;

// How a list of entries is read.
template <class Entry>
struct ListOf;
template <>
struct ListOf<DataSource> {
  static auto fields() { return source_fields(); }
  static constexpr bool kKeyIsEnough = true;  // an entry may be its key alone
  static constexpr const char* kNoun = "files";
  static constexpr const char* kWanted = "must be a path or a group such as {path: text.txt}";
};
template <>
struct ListOf<ParameterGroup> {
  static auto fields() { return group_fields(); }
  static constexpr bool kKeyIsEnough = false;
  static constexpr const char* kNoun = "groups";
  static constexpr const char* kWanted = "must be a group such as {match: bias, weight_decay: 0}";
};

// Where a node stands: "demo.yaml" with lines, or a flag without.
struct Origin {
  std::string name;
  bool flag = false;

  std::string at(int line) const { return flag ? name : fmt::format("{}:{}", name, line); }
};

std::string join(std::string_view prefix, std::string_view key) {
  return prefix.empty() ? std::string(key) : fmt::format("{}.{}", prefix, key);
}

// The keys that may stand below `prefix`: sections at the top, fields in a section.
std::vector<std::string> keys_below(std::string_view prefix) {
  std::vector<std::string> keys;
  if (prefix.empty()) {
    for (const Section& section : sections()) keys.emplace_back(section.name);
    return keys;
  }
  const std::string start = fmt::format("{}.", prefix);
  for (const Field& field : fields()) {
    if (field.path.starts_with(start)) keys.emplace_back(field.path.substr(start.size()));
  }
  return keys;
}

bool is_section(std::string_view path) {
  return std::ranges::find(sections(), path, &Section::name) != sections().end();
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// What a person who wrote `key` below `prefix` most likely meant.
std::string suggestion(std::string_view prefix, std::string_view key) {
  if (key.size() > 100) return {};
  if (const auto dot = key.find('.'); dot != std::string_view::npos && find_field(key) != nullptr) {
    return fmt::format(" (nest it: '{}: {{{}: ...}}')", key.substr(0, dot), key.substr(dot + 1));
  }
  if (const auto near = nearest(key, keys_below(prefix)))
    return fmt::format(" (did you mean '{}'?)", *near);
  for (const Field& field : fields()) {
    if (last_part(field.path) == key) return fmt::format(" (did you mean '{}'?)", field.path);
  }
  std::vector<std::string> all = field_paths();
  if (const auto near = nearest(key, all)) return fmt::format(" (did you mean '{}'?)", *near);
  return {};
}

class Loader {
 public:
  Loader() {
    for (const Field& field : fields()) sources_.emplace(field.path, "default");
  }

  // With `section`, everything outside it is passed over.
  void read_text(std::string_view text, std::string name, std::string_view section = {}) {
    const Origin origin{std::move(name)};
    detail::Tree tree = detail::parse_tree(text);
    if (!section.empty()) {
      std::erase_if(tree.root.entries,
                    [&](const Node::Entry& entry) { return entry.key != section; });
    }
    for (const detail::TreeProblem& problem : tree.problems) {
      problems_.push_back(fmt::format("{}: {}", origin.at(problem.line), problem.text));
    }
    if (!tree.problems.empty()) return;
    if (tree.root.kind != Node::Kind::kNull) apply_group(tree.root, "", origin);
  }

  void read_file(const std::filesystem::path& file) {
    std::string text;
    if (const std::string problem = slurp(file, text); !problem.empty()) {
      problems_.push_back(fmt::format("{}: {}", detail::shown(file.native()), problem));
    } else {
      read_text(text, detail::shown(file.native()));
    }
  }

  // "optimizer.lr=0.001"
  void assign(const std::string& assignment) {
    const auto equals = assignment.find('=');
    const std::string path = assignment.substr(0, equals);
    const Origin origin{fmt::format("--set {}", detail::shown(path)), true};
    if (equals == std::string::npos || path.empty()) {
      problems_.push_back(fmt::format("--set {}: must look like --set optimizer.lr=0.001",
                                      detail::shown(assignment)));
      return;
    }
    const std::string text = assignment.substr(equals + 1);
    Node node;
    if (takes_raw_text(path, text)) {
      node.kind = Node::Kind::kScalar;
      node.quoted = true;
      node.scalar = text;
    } else {
      detail::Tree tree = detail::parse_tree(text);
      if (!tree.problems.empty()) {
        problems_.push_back(fmt::format("{}: {}", origin.name, tree.problems.front().text));
        unreadable_.insert(path);
        return;
      }
      node = std::move(tree.root);
    }
    apply_path(path, node, origin);
  }

  // A value that was found elsewhere, from a foreign file.
  void take(const Setting& setting) {
    detail::Tree tree = detail::parse_tree(setting.value);
    const Origin origin{setting.source, true};
    if (tree.problems.empty()) {
      apply_path(setting.path, tree.root, origin);
    } else {
      report(setting.path, 1, origin, tree.problems.front().text);
    }
  }

  void add_problem(std::string problem) { problems_.push_back(std::move(problem)); }

  // The setting need not be there.
  void leave_open(const std::string& path) {
    if (sources_.at(path) == "default") unreadable_.insert(path);
  }

  // What was read so far, whatever is wrong with it.
  Loaded so_far() const { return {config_, sources_}; }

  Loaded finish() {
    for (const detail::Finding& finding : detail::findings(config_, unreadable_)) {
      problems_.push_back(detail::located(finding, sources_));
    }
    detail::throw_problems(problems_);
    return {std::move(config_), std::move(sources_)};
  }

  // Only what concerns the section alone is checked.
  Config finish_section(const std::string& section) {
    for (const Field& field : fields()) {
      if (!field.path.starts_with(section + ".")) unreadable_.emplace(field.path);
    }
    return finish().config;
  }
  // Rules about this setting are not for a text that is only looked into.
  void excuse(std::string_view path) { unreadable_.emplace(path); }

 private:
  // Returns what is wrong with the file, or an empty text.
  static std::string slurp(const std::filesystem::path& file, std::string& text) {
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    if (!std::filesystem::exists(status)) return "no such file";
    if (std::filesystem::is_directory(status)) return "is a folder, not a configuration file";
    std::ifstream stream(file, std::ios::binary);
    if (!stream) return fmt::format("cannot be opened: {}", std::strerror(errno));
    // One byte more than allowed, so that parse_tree sees what is too large, endless devices
    // included.
    text.resize(detail::kMaxTextBytes + 1);
    stream.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (stream.bad()) return fmt::format("cannot be read: {}", std::strerror(errno));
    text.resize(static_cast<std::size_t>(stream.gcount()));
    return {};
  }

  // Texts and single paths on the command line are taken as they stand ("*", "#" and ":" are common
  // in paths), unless quoted or written as a list or group.
  static bool takes_raw_text(std::string_view path, const std::string& text) {
    const bool yaml = text.empty() ||
                      std::string_view("\"'[{").find(text.front()) != std::string_view::npos ||
                      text == "null" || text == "~";
    if (yaml) return false;
    if (path.starts_with("data.train") || path.starts_with("data.eval.") || path == "data.eval") {
      return !path.ends_with(".weight");
    }
    if (path.starts_with("optimizer.groups.")) return path.ends_with(".match");
    const Field* field = find_field(path);
    Config scratch;
    return field != nullptr && std::holds_alternative<std::string*>(field->slot(scratch));
  }

  void report(std::string_view path, int line, const Origin& origin, std::string_view text) {
    problems_.push_back(fmt::format("{}: {}: {}", origin.at(line), detail::shown(path), text));
    unreadable_.insert(std::string(path));
  }

  void apply_group(const Node& node, const std::string& prefix, const Origin& origin) {
    if (node.kind == Node::Kind::kNull) return;
    if (node.kind != Node::Kind::kMap) {
      problems_.push_back(fmt::format(
          "{}: {}", origin.at(node.line),
          prefix.empty() ? std::string("must be groups of settings, such as 'run: {name: demo}'")
                         : fmt::format("{}: must be a group of settings, such as '{}: {{{}: ...}}'",
                                       prefix, prefix, keys_below(prefix).front())));
      return;
    }
    std::map<std::string_view, int> seen;
    for (const Node::Entry& entry : node.entries) {
      const auto [first, is_new] = seen.emplace(entry.key, entry.line);
      const std::string path = join(prefix, entry.key);
      if (is_new) {
        apply_key(path, prefix, entry, origin);
      } else {
        report(path, entry.line, origin,
               fmt::format("given twice, first in line {}", first->second));
      }
    }
  }

  void apply_key(const std::string& path, const std::string& prefix, const Node::Entry& entry,
                 const Origin& origin) {
    if (prefix.empty() && is_section(path)) {
      apply_group(entry.value, path, origin);
    } else if (const Field* field = prefix.empty() ? nullptr : find_field(path)) {
      apply_field(*field, entry.value, origin);
    } else {
      refuse_key(path, prefix, entry.key, origin.at(entry.line));
    }
  }

  void refuse_key(std::string_view path, std::string_view prefix, std::string_view key,
                  const std::string& place) {
    const auto later = std::ranges::find(later_keys(), path, &LaterKey::path);
    problems_.push_back(later != later_keys().end()
                            ? fmt::format("{}: {}: {}", place, path, later->instead)
                            : fmt::format("{}: {}: unknown key{}", place, detail::shown(path),
                                          suggestion(prefix, key)));
  }

  void apply_field(const Field& field, const Node& node, const Origin& origin) {
    const Slot slot = field.slot(config_);
    if (const auto* files = std::get_if<std::vector<DataSource>*>(&slot)) {
      apply_list(std::string(field.path), **files, node, origin);
      return;
    }
    if (const auto* groups = std::get_if<std::vector<ParameterGroup>*>(&slot)) {
      apply_list(std::string(field.path), **groups, node, origin);
      return;
    }
    store(field, std::string(field.path), slot, node, origin);
  }

  void store(const FieldInfo& field, const std::string& path, const Slot& slot, const Node& node,
             const Origin& origin) {
    if (const auto problem = detail::read_value(field, slot, node)) {
      report(path, node.line, origin, *problem);
    } else {
      sources_[path] = origin.at(node.line);
      unreadable_.erase(path);  // a later, readable value replaces it; the problem stays reported
    }
  }

  // An entry or a list of entries.
  template <class Entry>
  void apply_list(const std::string& path, std::vector<Entry>& list, const Node& node,
                  const Origin& origin) {
    if (node.kind == Node::Kind::kNull) {
      report(path, node.line, origin, "has no value; write [] for none");
      return;
    }
    list.clear();
    std::erase_if(sources_, [&](const auto& entry) { return entry.first.starts_with(path + "."); });
    std::erase_if(unreadable_,
                  [&](const std::string& entry) { return entry.starts_with(path + "."); });
    unreadable_.erase(path);
    sources_[path] = origin.at(node.line);
    if (node.kind != Node::Kind::kList) {
      apply_entry(path, 0, list, node, origin);
      return;
    }
    if (node.items.size() > kMaxEntries) {
      report(path, node.line, origin,
             fmt::format("names more than {} {}", kMaxEntries, ListOf<Entry>::kNoun));
      return;
    }
    for (std::size_t i = 0; i < node.items.size(); ++i)
      apply_entry(path, i, list, node.items[i], origin);
  }

  template <class Entry>
  void apply_entry(const std::string& path, std::size_t index, std::vector<Entry>& list,
                   const Node& node, const Origin& origin) {
    const auto fields = ListOf<Entry>::fields();
    const std::string base = fmt::format("{}.{}", path, index);
    list.resize(std::max(list.size(), index + 1));
    list[index] = Entry{};
    for (const auto& field : fields) sources_[join(base, field.path)] = "default";
    const std::string key = join(base, fields.front().path);
    sources_[key] = origin.at(node.line);  // where to look when the key is missing
    if (node.kind == Node::Kind::kScalar && ListOf<Entry>::kKeyIsEnough) {
      store(fields.front(), key, fields.front().slot(list[index]), node, origin);
      return;
    }
    if (node.kind != Node::Kind::kMap) {
      report(key, node.line, origin, ListOf<Entry>::kWanted);
      return;
    }
    std::set<std::string_view> seen;
    for (const Node::Entry& entry : node.entries) {
      if (seen.insert(entry.key).second) {
        apply_entry_key(base, entry.key, list[index], entry.value, entry.line, origin);
      } else {
        report(join(base, entry.key), entry.line, origin, "given twice");
      }
    }
  }

  template <class Entry>
  void apply_entry_key(const std::string& base, const std::string& key, Entry& entry,
                       const Node& node, int line, const Origin& origin) {
    const auto fields = ListOf<Entry>::fields();
    const auto field = std::ranges::find(fields, std::string_view(key), &FieldInfo::path);
    if (field != fields.end()) {
      store(*field, join(base, key), field->slot(entry), node, origin);
      return;
    }
    std::vector<std::string> keys;
    for (const auto& known : fields) keys.emplace_back(known.path);
    const auto near = nearest(std::string_view(key).substr(0, 100), keys);
    report(join(base, key), line, origin,
           near ? fmt::format("unknown key (did you mean '{}'?)", *near)
                : fmt::format("unknown key; known: {}", fmt::join(keys, ", ")));
  }

  // The target of --set: a section, a field, or something inside a list or a group of options.
  void apply_path(const std::string& path, const Node& node, const Origin& origin) {
    if (is_section(path)) {
      apply_group(node, path, origin);
    } else if (const Field* field = find_field(path)) {
      apply_field(*field, node, origin);
    } else if (const Field* outer = field_around(path)) {
      const std::string rest = path.substr(outer->path.size() + 1);
      std::visit([&](auto* value) { apply_inside(*outer, rest, *value, node, origin); },
                 outer->slot(config_));
    } else {
      const auto dot = path.find('.');
      const std::string section = path.substr(0, dot);
      const bool known = dot != std::string::npos && is_section(section);
      refuse_key(path, known ? section : "", known ? path.substr(dot + 1) : path, origin.name);
    }
  }

  // Returns the list or the group of options that `path` leads into.
  static const Field* field_around(std::string_view path) {
    Config scratch;
    for (const Field& field : fields()) {
      const bool below = path.starts_with(field.path) && path.size() > field.path.size() &&
                         path[field.path.size()] == '.';
      if (!below) continue;
      const Slot slot = field.slot(scratch);
      if (std::holds_alternative<std::vector<DataSource>*>(slot) ||
          std::holds_alternative<std::vector<ParameterGroup>*>(slot) ||
          std::holds_alternative<std::map<std::string, std::string>*>(slot)) {
        return &field;
      }
    }
    return nullptr;
  }

  template <class Value>
  void apply_inside(const Field& /*field*/, const std::string& /*rest*/, Value& /*value*/,
                    const Node& /*node*/, const Origin& /*origin*/) {
    ensure(false, "field_around() returns nothing else");
  }

  // "num_cycles" inside schedule.options.
  void apply_inside(const Field& field, const std::string& rest,
                    std::map<std::string, std::string>& options, const Node& node,
                    const Origin& origin) {
    std::map<std::string, std::string> one;
    Node group;
    group.kind = Node::Kind::kMap;
    group.entries.push_back({rest, node.line, node});
    if (const auto problem = detail::read_value(field, Slot(&one), group)) {
      report(field.path, node.line, origin, *problem);
      return;
    }
    options[rest] = one.at(rest);
    sources_[std::string(field.path)] = origin.name;
  }

  // "0.path" inside data.train; the index after the last one adds an entry.
  template <class Entry>
  void apply_inside(const Field& field, const std::string& rest, std::vector<Entry>& list,
                    const Node& node, const Origin& origin) requires requires {
    ListOf<Entry>::fields();
  }
  {
    const std::string list_path(field.path);
    const auto dot = rest.find('.');
    const std::string index_text = rest.substr(0, dot);
    const bool digits = !index_text.empty() && index_text.size() < 6 &&
                        index_text.find_first_not_of("0123456789") == std::string::npos;
    const std::size_t index = digits ? std::stoul(index_text) : kMaxEntries;
    if (index > list.size() || index >= kMaxEntries) {
      problems_.push_back(fmt::format("{}: {} has {} entries; the index must be 0 to {}",
                                      origin.name, list_path, list.size(), list.size()));
      return;
    }
    if (dot == std::string::npos) {
      sources_[list_path] = origin.name;
      apply_entry(list_path, index, list, node, origin);
      return;
    }
    if (index == list.size()) {
      sources_[list_path] = origin.name;
      Node empty;
      empty.kind = Node::Kind::kMap;
      apply_entry(list_path, index, list, empty, origin);
    }
    apply_entry_key(fmt::format("{}.{}", list_path, index), rest.substr(dot + 1), list[index], node,
                    1, origin);
  }

  Config config_;
  Sources sources_;
  std::vector<std::string> problems_;
  std::set<std::string> unreadable_;
};

}  // namespace

Loaded load(const std::vector<std::filesystem::path>& files,
            const std::vector<std::string>& assignments) {
  Loader loader;
  for (const auto& file : files) loader.read_file(file);
  for (const std::string& assignment : assignments) loader.assign(assignment);
  return loader.finish();
}

LoadedForeign load(const std::vector<std::filesystem::path>& files,
                   const std::vector<std::string>& assignments,
                   const std::vector<ForeignFile>& foreign, std::optional<std::int64_t> world_size,
                   bool partial) {
  Loader native;  // its problems are reported below, once
  for (const auto& file : files) native.read_file(file);
  for (const std::string& assignment : assignments) native.assign(assignment);
  LoadedForeign out;
  out.adapted = adapt(foreign, native.so_far(), world_size);
  Loader loader;
  for (const ForeignFinding& finding : out.adapted.findings)
    if (finding.severity == Severity::kError) loader.add_problem(finding.report());
  for (const Setting& setting : out.adapted.settings) loader.take(setting);
  for (const auto& file : files) loader.read_file(file);
  for (const std::string& assignment : assignments) loader.assign(assignment);
  if (partial) loader.leave_open("data.train");
  out.loaded = loader.finish();
  return out;
}

Loaded load_text(std::string_view yaml, std::string_view name,
                 const std::vector<std::string>& assignments) {
  Loader loader;
  loader.read_text(yaml, detail::shown(name));
  for (const std::string& assignment : assignments) loader.assign(assignment);
  return loader.finish();
}

Model load_model(std::string_view yaml, std::string_view name) {
  Loader loader;
  loader.read_text(yaml, detail::shown(name), "model");
  return loader.finish_section("model").model;
}

Data load_data(std::string_view yaml, std::string_view name) {
  Loader loader;
  loader.read_text(yaml, detail::shown(name), "data");
  loader.excuse("data.train");  // an imported checkpoint was trained on nothing that is known here
  return loader.finish_section("data").data;
}

}  // namespace trireme::config
