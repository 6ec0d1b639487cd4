// The field table written out: resolved YAML, help, reference page and JSON Schema.
#include "trireme/config/fields.hpp"
#include "trireme/config/load.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>

namespace trireme::config {

namespace {

using Json = nlohmann::ordered_json;

std::string comment(const Sources& sources, const std::string& path) {
  const auto found = sources.find(path);
  if (found == sources.end()) return {};
  std::string source = found->second;
  std::ranges::replace_if(
      source, [](unsigned char c) { return c < 0x20; }, ' ');
  return "  # " + source;
}

std::string_view section_of(const Field& field) {
  return field.path.substr(0, field.path.find('.'));
}
std::string_view key_of(const Field& field) { return field.path.substr(field.path.find('.') + 1); }

template <class Entry>
std::string list_yaml(const Field& field, std::span<const EntryField<Entry>> parts,
                      std::vector<Entry>& list, const Sources& sources) {
  const std::string path(field.path);
  std::string out = fmt::format("  {}:{}\n", key_of(field), comment(sources, path));
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string_view lead = "    - ";
    for (const EntryField<Entry>& part : parts) {
      const std::string value = value_text(part, part.slot(list[i]));
      if (value == "null" || value == "[]") continue;  // not set
      out += fmt::format("{}{}: {}{}\n", lead, part.path, value,
                         comment(sources, fmt::format("{}.{}.{}", path, i, part.path)));
      lead = "      ";
    }
  }
  return out;
}

Json type_of(const FieldInfo& field, const Slot& slot);

Json with_range(Json json, const Range& range) {
  const auto number = [](double value) -> Json {
    if (value == std::floor(value) && std::abs(value) < 1e15)
      return static_cast<std::int64_t>(value);
    return value;
  };
  if (std::isfinite(range.min))
    json[range.above_min ? "exclusiveMinimum" : "minimum"] = number(range.min);
  if (std::isfinite(range.max))
    json[range.below_max ? "exclusiveMaximum" : "maximum"] = number(range.max);
  return json;
}

Json words(const FieldInfo& field) {
  Json json = {{"type", "string"}};
  for (const Choice& choice : field.choices) {
    if (choice.instead.empty()) json["enum"].push_back(choice.value);
  }
  if (field.form == Form::kFileName || field.form == Form::kPath) json["minLength"] = 1;
  return json;
}

template <class Entry>
Json entry_schema(std::span<const EntryField<Entry>> fields) {
  Json json = {{"type", "object"}, {"additionalProperties", false}};
  json["required"].push_back(fields.front().path);
  Entry scratch;
  for (const EntryField<Entry>& field : fields) {
    Json entry = type_of(field, field.slot(scratch));
    entry["description"] = field.help;
    json["properties"][std::string(field.path)] = std::move(entry);
  }
  return json;
}

struct SchemaOf {
  const FieldInfo& field;

  Json operator()(const std::string*) const { return words(field); }
  Json operator()(const std::int64_t*) const {
    return with_range({{"type", "integer"}}, field.range);
  }
  Json operator()(const std::uint64_t*) const { return {{"type", "integer"}, {"minimum", 0}}; }
  Json operator()(const double*) const {
    Json json = with_range({{"type", "number"}}, field.range);
    if (field.form != Form::kSeconds) return json;
    return {{"anyOf", {json, {{"type", "string"}, {"pattern", "^[0-9.eE+-]+ *(s|min|h|d)?$"}}}}};
  }
  Json operator()(const std::optional<double>*) const {
    return with_range({{"type", "number"}}, field.range);
  }
  Json operator()(const bool*) const { return {{"type", "boolean"}}; }
  Json operator()(const std::vector<double>*) const {
    return {{"type", "array"}, {"items", with_range({{"type", "number"}}, field.range)}};
  }
  Json operator()(const std::vector<std::string>*) const {
    return {{"type", "array"}, {"items", words(field)}, {"uniqueItems", true}};
  }
  Json operator()(const std::vector<DataSource>*) const {
    const Json path = {{"type", "string"}};
    const Json source = entry_schema(source_fields());
    const Json one = {{"anyOf", {path, source}}};
    return {{"anyOf", {path, source, {{"type", "array"}, {"items", one}}}}};
  }
  Json operator()(const std::vector<ParameterGroup>*) const {
    const Json group = entry_schema(group_fields());
    return {{"anyOf", {group, {{"type", "array"}, {"items", group}}}}};
  }
  Json operator()(const std::map<std::string, std::string>*) const {
    const Json value = {{"type", {"string", "number", "boolean"}}};
    return {{"type", "object"}, {"additionalProperties", value}};
  }
};

Json type_of(const FieldInfo& field, const Slot& slot) {
  Json json = std::visit(SchemaOf{field}, slot);
  if (field.form == Form::kUnset) json["type"] = {json["type"], "null"};
  return json;
}

Json default_of(const FieldInfo& field, const Slot& slot) {
  if (value_text(field, slot) == "null") return nullptr;
  return std::visit(
      [](const auto* value) -> Json {
        using Value = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<Value, std::vector<DataSource>> ||
                      std::is_same_v<Value, std::vector<ParameterGroup>>) {
          return Json::array();
        } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
          return *value ? Json(**value) : Json(nullptr);
        } else if constexpr (std::is_same_v<Value, std::map<std::string, std::string>>) {
          return Json::object();
        } else {
          return *value;
        }
      },
      slot);
}

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
  return text;
}

}  // namespace

namespace {

// Those settings that `wanted` says, by sections.
std::string yaml_of(const Config& config, const Sources& sources,
                    const std::function<bool(const Field&)>& wanted) {
  std::string out;
  Config copy = config;  // slots point into a Config that may be written
  std::string_view section;
  for (const Field& field : fields()) {
    if (!wanted(field)) continue;
    if (section_of(field) != section) {
      section = section_of(field);
      out += fmt::format("{}:\n", section);
    }
    const Slot slot = field.slot(copy);
    const auto* files = std::get_if<std::vector<DataSource>*>(&slot);
    const auto* groups = std::get_if<std::vector<ParameterGroup>*>(&slot);
    if (files != nullptr && !(*files)->empty()) {
      out += list_yaml(field, source_fields(), **files, sources);
    } else if (groups != nullptr && !(*groups)->empty()) {
      out += list_yaml(field, group_fields(), **groups, sources);
    } else {
      out += fmt::format("  {}: {}{}\n", key_of(field), value_text(field, slot),
                         comment(sources, std::string(field.path)));
    }
  }
  return out;
}

}  // namespace

std::string to_yaml(const Config& config, const Sources& sources) {
  return "# Resolved configuration: every setting with the source of its value.\n" +
         yaml_of(config, sources, [](const Field&) { return true; });
}

std::string given_yaml(const Config& config, const Sources& sources) {
  return yaml_of(config, sources, [&](const Field& field) {
    const auto found = sources.find(std::string(field.path));
    return found != sources.end() && found->second != "default";
  });
}

std::vector<std::pair<std::string, std::string>> changed_settings(const Config& config,
                                                                  const Sources& sources) {
  std::vector<std::pair<std::string, std::string>> rows;
  const Config defaults;
  for (const Field& field : fields()) {
    std::string text = value_text(field, config);
    if (text == value_text(field, defaults)) continue;
    const auto source = sources.find(std::string(field.path));
    if (source != sources.end()) text += fmt::format(" ({})", source->second);
    rows.emplace_back(field.path, std::move(text));
  }
  return rows;
}

std::string help_text(std::string_view prefix) {
  std::string out;
  Config defaults;
  for (const Field& field : fields()) {
    if (!field.path.starts_with(prefix)) continue;
    const Slot slot = field.slot(defaults);
    const std::string allowed = allowed_text(field);
    std::string note =
        fmt::format("{}; default {}", type_text(field, slot), value_text(field, slot));
    if (!allowed.empty()) note += "; " + allowed;
    if (!field.unit.empty()) note += fmt::format(" [{}]", field.unit);
    out += fmt::format("  {:<34}{}\n  {:<34}({})\n", field.path, field.help, "", note);
  }
  return out;
}

namespace {

template <class Entry>
std::string entry_table(std::string_view of, std::span<const EntryField<Entry>> fields) {
  std::string out = fmt::format(
      "\nEach entry of {}:\n\n| key | type | default | allowed | meaning "
      "|\n|---|---|---|---|---|\n",
      of);
  Entry entry;
  for (const EntryField<Entry>& field : fields) {
    const Slot slot = field.slot(entry);
    out += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", field.path, type_text(field, slot),
                       value_text(field, slot), cell(allowed_text(field)),
                       cell(std::string(field.help)));
  }
  return out;
}

}  // namespace

std::string reference_page() {
  std::string out =
      "# Settings\n\nMade from the field table in `src/config/fields.cpp`; do not edit.\n"
      "`--set section.key=value` sets one from the command line. Durations are seconds or `120s`, "
      "`10min`, `2h`, `1d`.\n";
  Config defaults;
  for (const Section& section : sections()) {
    out += fmt::format(
        "\n## {}\n\n{}\n\n| key | type | default | unit | allowed | meaning "
        "|\n|---|---|---|---|---|---|\n",
        section.name, section.help);
    for (const Field& field : fields()) {
      if (section_of(field) != section.name) continue;
      const Slot slot = field.slot(defaults);
      out += fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", key_of(field),
                         type_text(field, slot), value_text(field, slot), field.unit,
                         cell(allowed_text(field)), cell(std::string(field.help)));
    }
    if (section.name == "data") out += entry_table("`train` and `eval`", source_fields());
    if (section.name == "optimizer") out += entry_table("`groups`", group_fields());
  }
  return out;
}

std::string json_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Trireme configuration"},
               {"type", "object"},
               {"additionalProperties", false}};
  Config defaults;
  for (const Section& section : sections()) {
    root["properties"][std::string(section.name)] = {
        {"type", "object"}, {"description", section.help}, {"additionalProperties", false}};
  }
  for (const Field& field : fields()) {
    const Slot slot = field.slot(defaults);
    Json entry = type_of(field, slot);
    std::string help(field.help);
    if (!field.unit.empty()) help += fmt::format(" [{}]", field.unit);
    entry["description"] = help;
    entry["default"] = default_of(field, slot);
    root["properties"][std::string(section_of(field))]["properties"][std::string(key_of(field))] =
        std::move(entry);
  }
  return root.dump(2) + "\n";
}

}  // namespace trireme::config
